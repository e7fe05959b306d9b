"""A file that is no vitviz checkpoint, or a damaged one, is refused in one sentence."""

from __future__ import annotations

import json
import pickle
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from tests.support.reading import load_checkpoint
from vitviz import CheckpointError


def taken_apart(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a file, and the data behind it."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def put_together(header: object, data: bytes) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


@contextmanager
def refused(path: Path, *found: str) -> Iterator[None]:
    """What happens inside is refused soon, with one line that names the file and what was found."""
    start = time.process_time()
    with pytest.raises(CheckpointError) as caught:
        yield
    message = str(caught.value)
    assert message.startswith(f"{path.name}: ")
    for part in found:
        assert re.search(part, message), f"{part!r} is not in {message!r}"
    assert "\n" not in message
    assert len(message) < 700
    assert time.process_time() - start < 5


# What is refused: files that are none.

PICKLE = "executed"


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.mkdir, (self.path,)


def torch_pickle(path: Path, good: bytes) -> None:
    torch.save({"model": Payload(path.parent / PICKLE)}, path)


FILES: dict[str, Callable[[Path, bytes], object]] = {
    "empty": lambda path, good: path.write_bytes(b""),
    "a few bytes": lambda path, good: path.write_bytes(good[:7]),
    "text": lambda path, good: path.write_bytes(b"not a checkpoint, only some text\n" * 20),
    "zeros": lambda path, good: path.write_bytes(bytes(4096)),
    "an image": lambda path, good: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100)),
    "cut in the header": lambda path, good: path.write_bytes(good[:100]),
    "cut in the data": lambda path, good: path.write_bytes(good[:-1]),
    "a byte too many": lambda path, good: path.write_bytes(good + b"\0"),
    "a header of 2⁶⁴ bytes": lambda path, good: path.write_bytes(b"\xff" * 8 + good[8:]),
    "a header of 90 MB": lambda path, good: path.write_bytes(struct.pack("<Q", 90_000_000) + good[8:]),
    "a header that is no JSON": lambda path, good: path.write_bytes(put_together(b"{" * 200, b"")),
    "a header that is a list": lambda path, good: path.write_bytes(put_together([1, 2], b"")),
    "a pickle": lambda path, good: path.write_bytes(pickle.dumps(Payload(path.parent / PICKLE))),
    "torch's pickle": torch_pickle,
}


@pytest.mark.parametrize("write", FILES.values(), ids=FILES)
def test_a_file_that_is_no_safetensors_file_is_refused(good: Path, write: Callable[[Path, bytes], object]) -> None:
    path = good.with_name("hostile.safetensors")
    write(path, good.read_bytes())
    with refused(path, "an empty file|it begins with|or a damaged one|a pickle of another|torch cannot read it"):
        load_checkpoint(path)
    assert not (good.parent / PICKLE).exists(), "the file was executed"


# What is refused: headers that do not describe a model.


def without(part: str) -> Callable[[dict[str, str]], object]:
    return lambda metadata: metadata.pop(part)


def replaced(part: str, text: str) -> Callable[[dict[str, str]], object]:
    return lambda metadata: metadata.update({part: text})


def configured(**changes: object) -> Callable[[dict[str, str]], object]:
    def change(metadata: dict[str, str]) -> None:
        metadata["config"] = json.dumps({**json.loads(metadata["config"]), **changes})

    return change


def prepared(**changes: object) -> Callable[[dict[str, str]], object]:
    def change(metadata: dict[str, str]) -> None:
        metadata["preprocessing"] = json.dumps({**json.loads(metadata["preprocessing"]), **changes})

    return change


def randomized_analysis(name: str) -> Callable[[dict[str, str]], object]:
    def change(metadata: dict[str, str]) -> None:
        config = json.loads(metadata["config"])
        del config[name]
        metadata["config"] = json.dumps(config)

    return change


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
    "config a list": (replaced("config", "[1, 2]"), r"config = \[1, 2\]: expected its fields by name"),
    "config null": (replaced("config", "null"), "config = None"),
    "a missing field": (randomized_analysis("heads"), "heads"),
    "an unknown field": (configured(dropout=0.1), "unknown field 'dropout'; expected image_height, .* norm_epsilon"),
    "width a text": (configured(width="32"), "width = '32': expected a whole number"),
    "width a fraction": (configured(width=32.5), "width = 32.5: expected a whole number"),
    "depth a float": (configured(depth=3.0), "depth = 3.0: expected a whole number"),
    "depth a text": (configured(depth="3"), "depth = '3': expected a whole number"),
    "depth true": (configured(depth=True), "depth = True: expected a whole number"),
    "heads null": (configured(heads=None), "heads = None: expected a whole number"),
    "heads a long list": (configured(heads=list(range(10_000))), r"heads = \[0, 1, .* …\)$"),
    "cls_token a text": (configured(cls_token="no"), "cls_token = 'no': expected True or False"),
    "qkv_bias a number": (configured(qkv_bias=1), "qkv_bias = 1: expected True or False"),
    "pooling unknown": (configured(pooling="max"), "pooling = 'max': expected 'cls', 'mean', "),
    "epsilon a text": (configured(norm_epsilon="1e-6"), "norm_epsilon = '1e-6': expected a finite number above 0"),
    "epsilon NaN": (configured(norm_epsilon=float("nan")), "norm_epsilon = nan"),
    "epsilon zero": (configured(norm_epsilon=0), "norm_epsilon = 0"),
    "width zero": (configured(width=0), "width = 0: expected a whole number of at least 1"),
    "width 10³⁰": (configured(width=10**30), "does not describe a model"),
    "widths beyond any memory": (configured(width=2**40, mlp_width=2**40), "does not describe a model"),
    "a billion layers": (configured(depth=10**9), "depth = 1000000000: expected at most 1000"),
    "a billion registers": (configured(register_tokens=10**9), "register_tokens = 1000000000: expected at most 1000"),
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
    "labels one text": (replaced("labels", '"abcde"'), "labels = 'abcde': expected a list of names"),
    "labels numbers": (replaced("labels", "[1, 2, 3, 4, 5]"), r"labels = \[1, 2, 3, 4, 5\]: expected a list of names"),
    "labels by name": (replaced("labels", '{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}'), "expected a list of names"),
    "card a list": (replaced("card", '[["accuracy", "90 %"]]'), "expected texts by name"),
    "card of numbers": (replaced("card", '{"accuracy": 0.9}'), r"card = \{'accuracy': 0.9\}: expected texts by name"),
}


@pytest.mark.parametrize(("change", "found"), HEADERS.values(), ids=HEADERS)
def test_a_header_that_describes_no_model_is_refused(
    good: Path, change: Callable[[dict[str, str]], object], found: str
) -> None:
    header, data = taken_apart(good)
    change(header["__metadata__"])
    path = good.with_name("hostile.safetensors")
    path.write_bytes(put_together(header, data))
    with refused(path, found):
        load_checkpoint(path)


# What is refused: tensors that are not those of the configuration.


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(path).network.state_dict()


def rewritten(path: Path, tensors: dict[str, torch.Tensor], **config: object) -> Path:
    """The checkpoint with other tensors, and its configuration changed."""
    metadata = taken_apart(path)[0]["__metadata__"]
    configured(**config)(metadata)
    hostile = path.with_name("hostile.safetensors")
    hostile.write_bytes(save(tensors, metadata))
    return hostile


def test_a_missing_tensor_is_named(good: Path) -> None:
    tensors = tensors_of(good)
    del tensors["layers.1.mlp.0.bias"]
    with refused(path := rewritten(good, tensors), r"missing: layers\.1\.mlp\.0\.bias\)"):
        load_checkpoint(path)


def test_a_surplus_tensor_is_named(good: Path) -> None:
    path = rewritten(good, {**tensors_of(good), "head.weight": torch.zeros(2)})
    with refused(path, r"surplus: head\.weight\)"):
        load_checkpoint(path)


@pytest.mark.parametrize("shape", [(24, 4, 32), (4, 6, 31), (4, 6, 32, 1), (768,)])
def test_a_tensor_of_another_shape_is_named_with_both_shapes(good: Path, shape: tuple[int, ...]) -> None:
    path = rewritten(good, {**tensors_of(good), "positions": torch.zeros(shape)})
    with refused(path, re.escape(f"positions is float32 {shape}, expected (4, 6, 32) in float32")):
        load_checkpoint(path)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.uint8, torch.bool])
def test_a_tensor_that_would_not_come_back_exactly_is_refused(good: Path, dtype: torch.dtype) -> None:
    path = rewritten(good, {**tensors_of(good), "norm.bias": torch.zeros(32, dtype=dtype)})
    with refused(path, r"norm\.bias is \w+ \(32,\), expected \(32,\) in float32 or float16 or bfloat16"):
        load_checkpoint(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_refused(good: Path, value: float) -> None:
    tensors = tensors_of(good)
    tensors["norm.bias"] = torch.tensor([0.0] * 31 + [value])
    with refused(path := rewritten(good, tensors), r"not finite in 'norm\.bias'"):
        load_checkpoint(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"depth": 100}, r"missing: layers\.10\..* and 1,160 more"),
        ({"depth": 1}, r"surplus: layers\.1\..* and 20 more"),
        ({"width": 64}, r"expected \(.*64.*\) in .* and \d+ more"),
        ({"classes": 0}, r"surplus: classifier\.bias, classifier\.weight\)"),
        ({"classes": 7}, r"classifier\.bias is float32 \(5,\), expected \(7,\)"),
        ({"register_tokens": 1}, r"prefix_tokens is float32 \(1, 32\), expected \(2, 32\)"),
        ({"image_height": 2**20}, r"positions is float32 \(4, 6, 32\), expected \(262144, 6, 32\)"),
        ({"qkv_bias": False}, r"surplus: layers\.0\.attention\.qkv\.bias"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_configuration_of_other_tensors_is_refused_before_they_are_built(
    good: Path, config: dict[str, object], found: str
) -> None:
    tensors = tensors_of(good)
    path = rewritten(good, tensors, **config)
    if "classes" in config:
        header, data = taken_apart(path)
        header["__metadata__"]["labels"] = json.dumps(["label"] * int(str(config["classes"])))
        path.write_bytes(put_together(header, data))
    with refused(path, "the tensors are not those of its configuration", found):
        load_checkpoint(path)
