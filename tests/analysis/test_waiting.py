"""A graphics card is not waited for before numbers are asked for.

Its place is taken by torch's device "meta": tensors with shape and type, but without values, so that whatever needs a
value on the processor raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend

from vitviz import VisionTransformer
from vitviz.attention import softmax
from vitviz.attribution import attention_sheet, rollout, rollout_matrix
from vitviz.attribution.batched_rollout import rollouts
from vitviz.models.network import Encoding

KERNELS = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION)
ROLLOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"head_fusion": "max"},
    {"head_fusion": "min", "discard_ratio": 0.9},
    {"discard_ratio": 0.5, "start_layer": 1},
)
Encode = Callable[..., Encoding]


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def encode(
    request: pytest.FixtureRequest, make_network: Callable[..., VisionTransformer], monkeypatch: pytest.MonkeyPatch
) -> Encode:
    """Encodes three images with one of the kernels that a card has."""
    choice = request.param.value
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **__: choice)
    monkeypatch.setitem(softmax._KERNELS, ("meta", choice), softmax._KERNELS["cuda", choice])
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)

    @torch.inference_mode()
    def run(**changes: Any) -> Encoding:
        network = make_network(**changes).to("meta")
        return network.encode(torch.empty(3, 3, 16, 24, device="meta"), keep_bytes=2**20)

    return run


@pytest.mark.parametrize("changes", [{}, {"register_tokens": 4, "rotary": True}, {"pooling": "mean"}])
def test_an_encoding_and_its_attention(encode: Encode, changes: dict[str, Any]) -> None:
    trace = encode(**changes).traces[1]
    layers, heads, tokens, _ = trace.keys.shape
    assert set(trace.known_log_sums) >= {0, 1}
    assert all(sums.shape == (heads, tokens) for sums in trace.known_log_sums.values())
    assert trace.rows(2).shape == trace.columns(2).shape == (layers, heads, tokens)
    for parameters in ROLLOUTS:
        assert rollout_matrix(trace, **parameters).shape == (tokens, tokens)


def test_a_map_waits_once(encode: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    traces = encode().traces
    waits = []

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            waits.append(tensor.shape)
        return torch.zeros(tensor.shape)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    for parameters in ROLLOUTS:
        for compute in (lambda **options: rollout(traces[0], **options), lambda **options: rollouts(traces, **options)):
            waits.clear()
            compute(**parameters)
            assert len(waits) == 1
    waits.clear()
    attention_sheet(traces[0])
    assert len(waits) == 1
