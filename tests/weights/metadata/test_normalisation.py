"""How pixels are standardised where a checkpoint's files say it, where they do not, and where the user does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.timm_cases import TOLD, as_deit3, make
from tests.reference_packages import timm
from tests.support.reading import read_checkpoint
from vitviz.weights.metadata.normalisations import CLIP, HALVES, IMAGENET

pytestmark = pytest.mark.parity


def wrapped(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {"model": state}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, HALVES, id="AugReg"),
        pytest.param({"rename": wrapped}, IMAGENET, id="DeiT and MAE, which stand under 'model'"),
        pytest.param({"rename": as_deit3, "init_values": 0.5, "no_embed_class": True}, IMAGENET, id="DeiT-III"),
        pytest.param({"pre_norm": True, "overrides": {"activation": "gelu"}}, CLIP, id="CLIP"),
    ],
)
def test_a_bare_file_has_the_convention_of_what_its_keys_are_like(
    options: dict[str, Any], expected: tuple[tuple[float, ...], ...], tmp_path: Path
) -> None:
    overrides = {**TOLD, **options.pop("overrides", {})}
    path = make(tmp_path, **options).path
    reading = read_checkpoint(path, **overrides)
    assert (reading.model.preprocessing.mean, reading.model.preprocessing.std) == expected
    source = next(check.source for check in reading.checks if check.fact == "preprocessing")
    assert "no file beside the checkpoint says it" in source
    assert "normalisation=" in source
    told = read_checkpoint(path, **overrides, normalisation="none").model.preprocessing
    assert (told.mean, told.std) == ((0.0,) * 3, (1.0,) * 3)


def test_a_bare_file_of_shapes_that_timm_prepares_in_one_way_is_prepared_so(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_384")
    torch.save(model.state_dict(), tmp_path / "model.pth")
    reading = read_checkpoint(tmp_path / "model.pth")
    assert reading.model.preprocessing.crop_fraction == timm.data.resolve_model_data_config(model)["crop_pct"] == 1.0
    assert "timm's default for vit_tiny_patch16_384" in reading.model.card["preprocessing"]


def test_a_configuration_comes_before_the_convention_and_the_user_before_both(tmp_path: Path) -> None:
    path = make(tmp_path, architecture="vit_tiny_patch16_224").path
    stated = read_checkpoint(path).model.preprocessing
    assert (stated.mean, stated.std) == HALVES, "what timm writes for this architecture"
    told = read_checkpoint(path, normalisation="clip").model.preprocessing
    assert (told.mean, told.std) == CLIP
    assert told.crop_fraction == stated.crop_fraction
