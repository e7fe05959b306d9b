"""A file that is no vitviz checkpoint, or a damaged one, is refused in one sentence."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.support.reading import load_checkpoint
from tests.support.weight_files import Tensors, expect_refusal

HOSTILE = "hostile.safetensors"


def taken_apart(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, and the data behind it."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


Change = Callable[[dict[str, str]], object]
MISSING = object()


def without(part: str) -> Change:
    return lambda metadata: metadata.pop(part)


def replaced(part: str, text: str) -> Change:
    return lambda metadata: metadata.update({part: text})


def changed(part: str, **changes: object) -> Change:
    def change(metadata: dict[str, str]) -> None:
        values = {**json.loads(metadata[part]), **changes}
        metadata[part] = json.dumps({name: value for name, value in values.items() if value is not MISSING})

    return change


configured, prepared = partial(changed, "config"), partial(changed, "preprocessing")
HEADERS: dict[str, tuple[Callable[[dict[str, str]], object], str]] = {
    "no metadata": (lambda metadata: metadata.clear(), "format none in its header; expected 'vitviz 1'"),
    "another format": (replaced("format", "pt"), "format 'pt' in its header; expected 'vitviz 1'"),
    "a later format": (replaced("format", "vitviz 2"), "format 'vitviz 2'"),
    "no config": (without("config"), "no 'config' in its header; expected format, config, preprocessing"),
    "no preprocessing": (without("preprocessing"), "no 'preprocessing'"),
    "no labels": (without("labels"), "no 'labels'"),
    "no card": (without("card"), "no 'card'"),
    "broken JSON": (replaced("config", '{"width": '), "does not describe a model"),
    "JSON nested too deeply": (replaced("labels", "[" * 100_000), "does not describe a model"),
    "a number of 10,000 digits": (replaced("config", "9" * 10_000), "does not describe a model"),
    "config a list": (replaced("config", "[1, 2]"), "does not describe a model"),
    "config null": (replaced("config", "null"), "does not describe a model"),
    "a missing field": (configured(heads=MISSING), "heads"),
    "an unknown field": (configured(dropout=0.1), "ViTConfig has no parameter 'dropout'"),
    "width a text": (configured(width="32"), "width = '32': expected a whole number"),
    "heads a long list": (configured(heads=list(range(10_000))), r"heads = \[0, 1, .*\.\.\.\]: expected a whole"),
    "width 10³⁰": (configured(width=10**30), "does not describe a model"),
    "widths beyond any memory": (configured(width=2**40, mlp_width=2**40), "does not describe a model"),
    "a patch that does not divide": (configured(patch_width=5), "16×24 pixels .* multiple of the patch, 4×5"),
    "preprocessing a list": (replaced("preprocessing", "[]"), "does not describe a model"),
    "preprocessing incomplete": (
        replaced("preprocessing", "{}"),
        "Preprocessing: missing a required argument: 'height'",
    ),
    "unknown preprocessing": (prepared(gamma=2), "Preprocessing has no parameter 'gamma'"),
    "preprocessing too large": (prepared(height=10**6, width=10**6), "at most 64,000,000 pixels"),
    "one channel": (prepared(mean=[0.5], std=[0.5]), "1 channel means for 3 channels"),
    "size of less than a patch": (prepared(height=3), "3×24 pixels: expected at least one patch, 4×4"),
    "too few labels": (replaced("labels", '["cat", "dog"]'), "2 labels for 5 classes"),
}


@pytest.mark.parametrize(("change", "found"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_describes_no_model_is_refused(good: Path, change: Change, found: str) -> None:
    header, data = taken_apart(good)
    change(header["__metadata__"])
    encoded = json.dumps(header).encode()
    good.with_name(HOSTILE).write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    with expect_refusal(HOSTILE, found):
        load_checkpoint(good.with_name(HOSTILE))


def put(key: str, tensor: torch.Tensor) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({key: tensor})


TENSORS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "one less": (
        lambda tensors: tensors.pop("layers.1.mlp.0.bias"),
        r'Missing key\(s\) in state_dict: "layers\.1\.mlp\.0\.bias"',
    ),
    "one more": (put("head.weight", torch.zeros(2)), r'Unexpected key\(s\) in state_dict: "head\.weight"'),
    **{
        f"of shape {shape}": (
            put("positions", torch.zeros(shape)),
            r"size mismatch for positions: .*" + re.escape(f"{list(shape)}) from checkpoint") + r".*\[4, 6, 32\]",
        )
        for shape in ((24, 4, 32), (4, 6, 31), (4, 6, 32, 1), (768,))
    },
}
# Of another configuration.
CONFIGURATIONS: dict[str, tuple[dict[str, int], str]] = {
    "wider": ({"width": 64}, r"size mismatch for prefix_tokens: .*\[1, 32\].*\[1, 64\]"),
    "no classifier": ({"classes": 0}, r'Unexpected key\(s\) in state_dict: "classifier\.'),
    "no bias": ({"qkv_bias": False}, r'Unexpected key\(s\) in state_dict: "layers\.0\.attention\.qkv\.bias"'),
}
CASES = {
    **{name: (change, {}, found) for name, (change, found) in TENSORS.items()},
    **{
        name: (lambda tensors: None, config, f"the tensors are not those of its configuration.*{found}")
        for name, (config, found) in CONFIGURATIONS.items()
    },
}


@pytest.mark.parametrize(("change", "config", "found"), CASES.values(), ids=CASES)
def test_tensors_that_are_not_those_of_the_configuration_are_refused(
    good: Path, change: Callable[[Tensors], object], config: dict[str, int], found: str
) -> None:
    tensors, metadata = load_checkpoint(good).network.state_dict(), taken_apart(good)[0]["__metadata__"]
    change(tensors)
    configured(**config)(metadata)
    if "classes" in config:
        metadata["labels"] = json.dumps(["label"] * config["classes"])
    good.with_name(HOSTILE).write_bytes(save(tensors, metadata))
    with expect_refusal(HOSTILE, found):
        load_checkpoint(good.with_name(HOSTILE))
