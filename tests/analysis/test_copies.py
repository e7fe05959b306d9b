"""Copies of an analysis, and what is printed of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.makers import MakeModel
from tests.support.modules import OwnViT, load_own
from tests.support.pictures import photo
from vitviz import METHODS, Analysis, analyze

pytestmark = pytest.mark.slow


def assert_same_maps(found: Analysis, expected: Analysis) -> None:
    for name, method in METHODS.items():
        if method.refusal(expected.model.network.config) is None:
            ours, theirs = found.map(name), expected.map(name)
            assert torch.equal(ours.values, theirs.values) and ours.description == theirs.description
    assert found.head_effects(1).whole == expected.head_effects(1).whole


@pytest.mark.parametrize("copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy, copy.copy])
@pytest.mark.parametrize("asked", ["at once", "after every map", "watched"])
def test_an_analysis_can_be_copied_and_pickled(
    make_model: MakeModel, asked: str, copied: Callable[[Analysis], Analysis], tmp_path: Path
) -> None:
    photo().save(tmp_path / "photo.png")
    model = load_own(OwnViT().eval()) if asked == "watched" else make_model(register_tokens=1)
    analysis = analyze(tmp_path / "photo.png", model)
    if asked == "after every map":
        assert_same_maps(analysis, analysis)
    found = copied(analysis)
    assert found is not analysis and found.source == analysis.source == tmp_path / "photo.png"
    assert found.predictions() == analysis.predictions() and torch.equal(found.logits, analysis.logits)
    assert found.prepared.image.tobytes() == analysis.prepared.image.tobytes()
    assert_same_maps(found, analysis)


def test_nothing_prints_more_than_a_line_or_two(make_model: MakeModel, tmp_path: Path) -> None:
    photo().save(tmp_path / "photo.png")
    model = make_model(register_tokens=1, classes=1000)
    analysis = analyze(tmp_path / "photo.png", model)
    heatmap = analysis.attention(layer=1, head=2)
    shown = {
        "Analysis(image ": (analysis, ("photo.png", "small", "3 layers × 4 heads", "4×6 patches", "class ")),
        "Model('small'": (model, ("3 layers × 4 heads", "1,000 classes", "24×16 pixels in patches of 4", "on cpu")),
        "Heatmap('Attention from the CLS token": (heatmap, ("layer 1 of 0–2, head 2", "4×6 patches", "30×20 pixels")),
        "TokenMap('Attention from the CLS token": (heatmap.token_map, ("attention weight from 0.",)),
        "AttentionTrace(3 layers × 4 heads": (analysis.trace, ("26 tokens", "4×6 patches")),
        "PreparedImage(": (analysis.prepared, ("photo.png: 30×20 pixels", "as an input of 24×16")),
        "HeadEffects(3 layers × 4 heads": (analysis.head_effects(0), ("with all of them",)),
    }
    for beginning, (value, parts) in shown.items():
        assert repr(value).startswith(beginning) and all(part in repr(value) for part in parts), repr(value)
        assert len(repr(value)) - len(str(tmp_path)) < 200 and "\n" not in repr(value)
    assert repr(analyze(photo(), make_model(classes=0))) == (
        "Analysis(an image by 'small': 3 layers × 4 heads, 4×6 patches)"
    )
