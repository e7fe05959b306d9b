"""What a user states of a checkpoint: in Python, as text, and of files that say everything themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity import CASES
from tests.parity.states import Kept
from tests.support.reading import read_checkpoint
from vitviz import Model, save_checkpoint
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.overrides import CHOICES, Stated, parse_overrides, split_overrides

pytestmark = pytest.mark.parity


# FACTS, in Python and as text.

GOOD: dict[str, dict[str, Any]] = {
    "heads=6": {"heads": 6},
    " heads = 6 ": {"heads": 6},
    "image_size=224": {"image_size": (224, 224)},
    "image_size=224x448": {"image_size": (224, 448)},
    "image_size=224×448": {"image_size": (224, 448)},
    "patch_size=8": {"patch_size": (8, 8)},
    "norm_epsilon=1e-5": {"norm_epsilon": 1e-5},
    "labels=healthy, powdery mildew,rust": {"labels": ("healthy", "powdery mildew", "rust")},
    **{f"{fact}={value}": {fact: value} for fact, values in CHOICES.items() for value in values},
}
BAD = {
    "heads": "expected NAME=VALUE",
    "heads=": "expected NAME=VALUE",
    "=6": "expected NAME=VALUE",
    "": "expected NAME=VALUE",
    "heads=six": "expected a whole number of at least 1",
    "heads=6.0": "expected a whole number of at least 1",
    "heads=0": "expected a whole number of at least 1",
    "heads=-2": "expected a whole number of at least 1",
    "image_size=0": "expected one or two whole numbers above 0",
    "image_size=8x": "expected one or two whole numbers above 0",
    "image_size=8x8x8": "expected one or two whole numbers above 0",
    "image_size=8,8": "expected one or two whole numbers above 0",
    "norm_epsilon=0": "expected a finite number above 0",
    "norm_epsilon=nan": "expected a finite number above 0",
    "norm_epsilon=inf": "expected a finite number above 0",
    "norm_epsilon=small": "expected a finite number above 0",
    "pooling=max": "expected 'cls', 'mean'",
    "activation=tanh": "expected 'gelu'",
    "final_norm=none at all": "expected 'before pooling'",
    "position_rule=cubic": "expected 'bicubic antialiased'",
    "width=3": "you can pass heads, image_size, patch_size,",
    "__class__=3": "you can pass",
}


@pytest.mark.parametrize("text", GOOD)
def test_a_fact_as_text(text: str) -> None:
    assert parse_overrides([text]) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_a_fact_as_text_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_overrides(["heads=6", text] if text != "" else [text])
    assert BAD[text] in str(caught.value)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        *[("heads", value) for value in (True, 6.0, "6", 0, math.nan)],
        *[("image_size", value) for value in (True, (8,), (8, 8.0), (8, True), "8", {8, 9})],
        *[("norm_epsilon", value) for value in (True, "1e-6", -1.0, math.nan)],
        *[("labels", value) for value in ("ab", ["a", 1], {1: "a"}, 3)],
        *[("pooling", value) for value in (["cls"], {"a": 1}, 3)],
    ],
)
def test_a_fact_of_another_type_is_refused(fact: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=f"{fact} .*expected"):
        Stated.of(**{fact: value})


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("heads=6, pooling=mean", ["heads=6", " pooling=mean"]),
        ("labels=healthy,rust, powdery mildew, heads=6,", ["labels=healthy,rust, powdery mildew", " heads=6"]),
        ("rust, heads=6", ["rust", " heads=6"]),
        (" , ", []),
    ],
)
def test_names_separated_by_commas_belong_together(text: str, texts: list[str]) -> None:
    assert split_overrides(text) == texts


# vitviz's own files say everything themselves.


@pytest.mark.parametrize("said", [{"heads": 4}, {"ignore": ["head.*"]}, {"family": "timm", "pooling": "cls"}])
def test_nothing_can_be_said_of_a_file_of_vitviz_s_own(
    said: dict[str, Any], make_model: Callable[..., Model], tmp_path: Path
) -> None:
    path = tmp_path / "own.safetensors"
    save_checkpoint(path, make_model())
    assert read_checkpoint(path).checks[0].value == "vitviz's own"
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path, **said)
    assert (
        str(caught.value)
        == f"own.safetensors: a checkpoint of vitviz's own says everything itself; leave out {', '.join(said)}"
    )


def test_a_classifier_of_other_features_is_refused(tmp_path: Path) -> None:
    kept = Kept(next(case for case in CASES if (case.family, case.name) == ("dinov2", "linear classifier")), tmp_path)
    with pytest.raises(CheckpointError, match=r"'linear_head\.weight' of shape \(7, 33\), .*; expected \(7, 32\)"):
        kept.read({**kept.state, "linear_head.weight": torch.ones(7, 33)})
