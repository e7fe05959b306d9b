"""What a visitor chose as a model, without the page."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitviz
from tests.parity.timm_cases import TOLD, make
from vitviz.errors.kinds import CheckpointError
from vitviz.ui.facts import assumed_sentence, model_facts
from vitviz.ui.models import ModelChoice, menu, open_choice
from vitviz.ui.service import AnalysisService
from vitviz.weights import BUNDLED, ZOO, Model

pytestmark = pytest.mark.parity


def apart(folder: Path, target: Path) -> tuple[str, ...]:
    """The files of a checkpoint as an upload keeps them: each in a folder of its own."""
    moved = []
    for number, file in enumerate(sorted(folder.iterdir())):
        place = target / str(number)
        place.mkdir(parents=True)
        moved.append(str(shutil.copy(file, place)))
    return tuple(moved)


def test_uploaded_files_are_read_together_and_a_message_names_them_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    make(folder, architecture="vit_tiny_patch16_224")
    model = open_choice(ModelChoice("", apart(folder, tmp_path / "apart"), (("heads", 4),)))
    assert (model.name, model.network.config.heads) == ("pytorch_model", 4)
    assert "vit_tiny_patch16_224" in model.card["architecture"]
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    del weights["blocks.1.norm1.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as raised:
        open_choice(ModelChoice("", apart(folder, tmp_path / "again"), (("heads", 4),)))
    assert str(raised.value) == "pytorch_model: missing 'blocks.1.norm1.weight'"


def test_what_the_menu_offers(bundled: Model) -> None:
    assert open_choice(ModelChoice(BUNDLED[0])).name == BUNDLED[0]
    offered = menu(bundled, {})
    assert [each["id"] for each in offered] == ["", *ZOO] and offered[0]["title"] == bundled.name
    assert all(each["megabytes"] == ZOO[each["id"]].megabytes for each in offered[1:] if each["megabytes"])
    assert menu(bundled, {}, opens_any=False) == offered[:1] and offered[0]["family"] == "vitviz"


def test_a_file_stands_under_the_family_that_it_is_of(tmp_path: Path, bundled: Model) -> None:
    make(tmp_path)
    (tmp_path / "model.pth").rename(tmp_path / "mine.pth")
    first = menu(vitviz.load(tmp_path / "mine.pth", **TOLD), {})[0]
    assert (first["title"], first["family"]) == ("mine", "timm ViT, DeiT, MAE, SigLIP, CLIP")
    # One of the list stands there once, as it is called there.
    offered = menu(replace(bundled, name="dino_vits16"), {})
    assert (offered[0]["title"], offered[0]["family"]) == (ZOO["dino_vits16"].title, ZOO["dino_vits16"].family)
    assert "dino_vits16" not in [each["id"] for each in offered]


def test_a_checkpoint_of_ones_own_has_an_id_that_nobody_can_guess(bundled: Model) -> None:
    own, service = (
        [ModelChoice("", (name,), name=name) for name in ("a.pth", "b.pth", "c.pth")],
        AnalysisService(bundled),
    )
    keys = list(map(service.models.name, own))
    assert len(set(keys)) == 3 and all(re.fullmatch(r"own:[\w-]{22}", key) for key in keys)
    # The same files are the same model.
    assert service.models.name(own[0]) == keys[0] and service.models.choice(keys[1], 3) == own[1]._replace(step=3)
    assert service.models.name(ModelChoice("hf:a/b")) == "hf:a/b"
    # Another visitor's id of it says nothing.
    assert service.models.own.key(own[0], "ben") != keys[0].removeprefix("own:")
    with pytest.raises(CheckpointError, match="open it again under Model"):
        service.models.choice("own:" + "a" * 22)


def test_what_is_assumed_is_told(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    make(tmp_path)
    model = vitviz.load(tmp_path / "model.pth", **TOLD)
    assert len(model.assumptions) == 1 and "preprocessing 32×32, " in model.assumptions[0]
    sentence = f"Assumed, since its file does not say it: {model.assumptions[0]}."
    assert model_facts("", "mine", model)["assumptions"] == sentence
    place = "details under “About this model” in the menu “Model”."
    assert assumed_sentence(model) == f"Assumed: preprocessing (timm's convention for AugReg); {place}"
    torch.save({"state_dict": torch.load(tmp_path / "model.pth"), "classes": ["a", "b"]}, tmp_path / "named.pth")
    named = vitviz.load(tmp_path / "named.pth", **TOLD, normalisation="half")
    assert "), classes numbered: classes of the file has 2 names, where the" in assumed_sentence(named)
    # Mean and deviation are stated, the crop is not.
    assert "32×32, crop to 0.9, " in named.assumptions[0]
    known = make_model()
    assert known.assumptions == () and model_facts("", "mine", known)["assumptions"] == assumed_sentence(known) == ""
