"""What an analysis is said to take beforehand is what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.support.makers import MakeNetwork
from vitviz import ConfigError, TokenLayout, VisionTransformer, ViTConfig
from vitviz.analysis.costs import cost_of

NETWORKS: dict[str, dict[str, Any]] = {
    "CLS": {},
    "five prefix tokens": {"distillation_token": True, "register_tokens": 3},
    "CLS and distillation": {"distillation_token": True, "pooling": "cls and distillation"},
    "no CLS": {"cls_token": False, "pooling": "mean", "final_norm": "after pooling"},
    "CLS and mean": {"register_tokens": 2, "pooling": "cls and mean", "classes": 0},
    "one layer": {"depth": 1},
    "gated": {"gated_mlp": True, "mlp_width": 40, "activation": "silu"},
    "wide heads": {"heads": 2, "head_width": 24},
    "rotary, normed": {"rotary": True, "query_key_norm": True, "patch_norms": True, "pre_norm": True},
    "representation": {"representation_width": 20},
    "projection": {"projection_width": 12, "classes": 0},
    "oblong patches, one channel": {"patch_width": 8, "channels": 1},
}


# Of the proportions of published networks, whose classifiers and poolings are a small part.
PROPORTIONED: dict[str, dict[str, Any]] = {
    "CLS": {},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "attention pooling": {"cls_token": False, "pooling": "attention"},
    "gated": {"gated_mlp": True, "mlp_width": 256, "activation": "silu"},
    "wide heads": {"head_width": 64},
    "rotary, normed": {"rotary": True, "query_key_norm": True},
    "oblong patches, one channel": {"patch_width": 16, "channels": 1},
}


@pytest.mark.parametrize("changes", PROPORTIONED.values(), ids=PROPORTIONED)
@pytest.mark.parametrize("size", [(64, 64), (112, 32)], ids=["trained size", "another size"])
def test_the_operations_are_about_those_that_torch_counts(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], size: tuple[int, int]
) -> None:
    # What happens inside the fused kernel is not counted.
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", plain_attention)
    config = replace(ViTConfig(64, 64, 8, 8, 96, 12, 3, 32, 384, 10), **changes)
    network = VisionTransformer(config).eval()
    for layer in network.encoder:
        layer.attention.fused = False
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        network(torch.zeros(3, config.channels, *size))
    assert cost_of(config, config.layout(*size), batch=3).flops == pytest.approx(counted.get_total_flops(), rel=0.1)


def plain_attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return (queries @ keys.transpose(-1, -2)).softmax(-1) @ values


@pytest.mark.parametrize("storage", [None, "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("changes", NETWORKS.values(), ids=NETWORKS)
def test_the_trace_is_as_large_as_it_is_said_to_be(
    make_network: MakeNetwork, changes: dict[str, Any], storage: str | None
) -> None:
    network = make_network(**changes)
    with torch.inference_mode():
        traces = network.encode(torch.zeros(2, network.config.channels, 24, 16), storage).traces
    found = cost_of(network.config, network.config.layout(24, 16), batch=2, storage=storage)
    assert found.tokens == traces[0].layout.token_count
    assert found.trace_bytes == sum(trace.nbytes for trace in traces)
    assert found.nbytes == found.trace_bytes + found.working_bytes


MEASURED = """
import json, re, sys
from PIL import Image
from vitviz import Model, Preprocessing, ViTConfig, VisionTransformer, analyze, cost

def peak(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1])

config = ViTConfig(64, 64, 16, 16, 192, 12, 3, 64, 768, 10)
network = VisionTransformer(config).eval().requires_grad_(False)
preprocessing = Preprocessing(64, 64, (0.5,) * 3, (0.5,) * 3, "squash")
model = Model("random", network, preprocessing, tuple(map(str, range(10))))
image = Image.linear_gradient("L").resize((60, 40)).convert("RGB")
# The first run loads code that stays.
analyze(image, model).rollout(head_fusion="max", discard_ratio=0.9)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
idle = peak("VmRSS")
said = cost(image, model, resolution=int(sys.argv[1]))
# Every layer takes the memory of the others, and as much time: three of twelve are enough.
analyze(image, model, resolution=int(sys.argv[1])).rollout(head_fusion="max", discard_ratio=0.9, start_layer=9)
print(json.dumps([said.tokens, said.nbytes, peak("VmHWM") - idle]))
"""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells a process its peak")
def test_the_memory_is_what_a_process_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "640"],
        # Otherwise the allocator keeps what is free, more or less of it in each run.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    counted, said, needed = json.loads(done.stdout)
    assert counted == 1601
    assert 0.5 * said <= needed <= 1.15 * said + 30e6


LARGE = ViTConfig(224, 224, 16, 16, 768, 12, 12, 64, 3072, 1000)


def test_memory_does_not_grow_with_the_square_of_the_tokens() -> None:
    one, four = (cost_of(LARGE, LARGE.layout(side, side)) for side in (1472, 2944))
    assert one.tokens**2 * 4 > one.working_bytes
    assert four.tokens == pytest.approx(4 * one.tokens, rel=1e-3)
    assert four.nbytes < 5 * one.nbytes
    assert four.flops > 6 * one.flops


def test_a_batch_takes_as_many_traces_and_operations() -> None:
    one, eight = (cost_of(LARGE, LARGE.layout(224, 224), batch) for batch in (1, 8))
    assert (eight.tokens, eight.trace_bytes, eight.flops) == (197, 8 * one.trace_bytes, 8 * one.flops)
    assert one.working_bytes < eight.working_bytes < 9 * one.working_bytes
    assert cost_of(LARGE, LARGE.layout(224, 224), storage="bfloat16").trace_bytes < 0.51 * one.trace_bytes


@pytest.mark.parametrize("batch", [0, -1, 1.0, True, "2"])
def test_a_batch_that_is_none_is_refused(batch: Any) -> None:
    with pytest.raises(ConfigError, match=r"batch = .*: expected a whole number of at least 1"):
        cost_of(LARGE, TokenLayout(("cls",), 2, 2), batch)
