"""A network takes images of other sizes, and says which it does not take."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from tests.support.makers import SMALL, MakeNetwork
from tests.support.vit import pixels_for
from vitviz import ViTConfig
from vitviz.attention import softmax
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.progress import Progress


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_trace_stores_what_its_network_computed_and_answers_at_least_in_single_precision(
    make_network: MakeNetwork, dtype: torch.dtype
) -> None:
    network = make_network().to(dtype)
    encoding = network.encode(pixels_for(network).to(dtype))
    trace = encoding.traces[0]
    assert encoding.logits.dtype == trace.queries.dtype == trace.keys.dtype == dtype
    assert trace.row(0, 1).dtype == torch.promote_types(dtype, torch.float32)


# Errors.


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 1, 16, 24), r"pixels of shape \(2, 1, 16, 24\): expected 'batch channel height width' with 3 channels"),
        ((2, 16, 24, 3), r"pixels of shape \(2, 16, 24, 3\): expected 'batch channel height width' with 3 channels"),
        ((3, 16, 24), r"pixels of shape \(3, 16, 24\): expected 'batch channel height width' with 3 channels"),
        ((1, 2, 3, 16, 24), r"pixels of shape \(1, 2, 3, 16, 24\): expected 'batch channel height width'"),
        ((2, 3, 15, 24), r"image of 15×24 pixels \(height × width\): both sides must be a multiple of the patch, 4×4"),
        ((2, 3, 16, 25), r"image of 16×25 pixels"),
        ((2, 3, 0, 24), r"image of 0×24 pixels"),
    ],
)
@pytest.mark.parametrize("call", ["forward", "encode"])
def test_pixels_that_do_not_fit_are_refused_by_their_shape(
    make_network: MakeNetwork, shape: tuple[int, ...], message: str, call: str
) -> None:
    with pytest.raises(ImageError, match=message):
        getattr(make_network(), call)(torch.zeros(shape))


SIZES = [name for name in SMALL if name != "classes"] + ["channels"]
WRONG = [
    (name, value, f"{name} = {value!r}: expected a whole number of at least 1") for name in SIZES for value in (0, -4)
]
WRONG += [
    (name, value, f"{name} = {value!r}: expected a whole number of at least 0")
    for name in ("classes", "register_tokens")
    for value in (-1, 2.0, True, "3", None)
]
POOLED = "'cls', 'mean', 'mean of all', 'cls and mean', 'cls and distillation' or 'attention'"
WRONG += [
    ("depth", 3.0, "depth = 3.0: expected a whole number of at least 1"),
    ("width", "32", "width = '32': expected a whole number of at least 1"),
    ("heads", True, "heads = True: expected a whole number of at least 1"),
    ("image_height", None, "image_height = None: expected a whole number of at least 1"),
    ("cls_token", 1, "cls_token = 1: expected True or False"),
    ("distillation_token", "no", "distillation_token = 'no': expected True or False"),
    ("qkv_bias", None, "qkv_bias = None: expected True or False"),
    ("pooling", "max", f"pooling = 'max': expected {POOLED}"),
    ("pooling", None, f"pooling = None: expected {POOLED}"),
    ("cls_token", False, "pooling = 'cls' needs cls_token = True; without a CLS token, pool by 'mean'"),
    ("image_height", 18, "image of 18×24 pixels (height × width): both sides must be a multiple of the patch, 4×4"),
    ("image_width", 26, "image of 16×26 pixels (height × width): both sides must be a multiple of the patch, 4×4"),
    ("patch_height", 32, "image of 16×24 pixels (height × width): both sides must be a multiple of the patch, 32×4"),
]
WRONG += [
    ("norm_epsilon", value, f"norm_epsilon = {value!r}: expected a finite number above 0")
    for value in (0, -1e-6, math.nan, math.inf, "1e-6", True)
]


WRONG += [
    (
        "activation",
        "tanh",
        "activation = 'tanh': expected 'gelu', 'gelu tanh', 'quick gelu', 'silu' or 'relu'; did you ",
    ),
    ("final_norm", "last", "final_norm = 'last': expected 'before pooling', 'after pooling' or 'none'"),
    ("position_rule", "cubic", "position_rule = 'cubic': expected"),
    ("pooling", "cls and distillation", "pooling = 'cls and distillation' needs distillation_token = True"),
    ("heads", {"pooling": "attention", "heads": 5}, "width = 32: attention pooling needs a multiple of heads = 5"),
    ("head_width", {"rotary": True, "head_width": 6}, "head_width = 6: rotary positions need a multiple of 4"),
    ("attention_scale", 0.0, "attention_scale = 0.0: expected a finite number above 0 or None"),
    ("attention_scale", math.nan, "attention_scale = nan: expected a finite number above 0 or None"),
    ("attention_scale", True, "attention_scale = True"),
    ("representation_width", -1, "representation_width = -1: expected a whole number of at least 0"),
    ("projection_width", 1.5, "projection_width = 1.5: expected a whole number of at least 0"),
    *((name, 1, f"{name} = 1: expected True or False") for name in ("gated_mlp", "rotary", "pre_norm", "patch_norms")),
    ("query_key_norm", None, "query_key_norm = None: expected True or False"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_an_impossible_config_is_refused_by_name(name: str, value: object, message: str) -> None:
    changes = value if isinstance(value, dict) else {name: value}
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        ViTConfig(**{**SMALL, **changes})


@pytest.mark.parametrize("shape", [(4,), (4, 3), (3, 4, 1), (1, 4), (3, 1), ()])
def test_a_mask_of_another_shape_is_refused(make_network: MakeNetwork, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"head mask of shape .*: expected 'layer head', \(3, 4\)"):
        make_network()(torch.randn(2, 3, 16, 24), head_mask=torch.ones(shape))


@pytest.mark.parametrize("size", [(0, 24), (16, 0), (-16, 24)])
def test_a_config_has_no_layout_for_an_empty_image(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError):
        ViTConfig(**SMALL).layout(*size)


@pytest.mark.parametrize("changes", [{}, {"register_tokens": 4}, {"cls_token": False, "pooling": "mean"}, {"heads": 1}])
def test_attention_of_many_tokens_reports_progress_and_is_the_same(
    make_network: MakeNetwork, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    network = make_network(**changes)
    pixels = torch.randn(2, 3, 16, 24)
    expected = network.encode(pixels)
    # Chunks of seven queries, the last of which is smaller.
    tokens = network.config.layout(16, 24).token_count
    keys = 2 * network.config.heads * tokens * network.config.head_width
    monkeypatch.setattr(softmax, "OPERATIONS_PER_KERNEL", 7 * 4 * keys)
    reports: list[Progress] = []
    found = network.encode(pixels, report=reports.append)
    torch.testing.assert_close(found.logits, expected.logits)
    for trace, expected_trace in zip(found.traces, expected.traces, strict=True):
        for layer in range(3):
            torch.testing.assert_close(trace.weights(layer), expected_trace.weights(layer))
            torch.testing.assert_close(trace.log_sums(layer), expected_trace.log_sums(layer))
    chunks = math.ceil(tokens / 7)
    assert [state.done for state in reports[: 2 * chunks + 2]] == [*[0] * chunks, *[1] * (chunks + 1), 2]
    assert reports[-1] == Progress(3, 3) and {state.total for state in reports} == {3}


def test_it_can_be_ended_in_the_middle_of_a_layer(make_network: MakeNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax, "OPERATIONS_PER_KERNEL", 1)
    reports: list[Progress] = []

    def stop(state: Progress) -> None:
        reports.append(state)
        if len(reports) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_network().encode(torch.randn(1, 3, 16, 24), report=stop)
    assert reports == [Progress(0, 3)] * 3
