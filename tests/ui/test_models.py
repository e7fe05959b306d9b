"""What a visitor chose as a model, without the page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from vitviz.ui.panels import model_aside
from vitviz.ui.texts import plain

import vitviz
from tests.parity.timm_cases import TOLD, make
from vitviz.errors.kinds import CheckpointError
from vitviz.ui.models import START, ModelChoice, ModelPicker, open_choice
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


def test_uploaded_files_are_read_together(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    make(folder, architecture="vit_tiny_patch16_224")
    model = open_choice(ModelChoice("", apart(folder, tmp_path / "apart"), (("heads", 4),)))
    assert model.name == "pytorch_model"
    assert model.network.config.heads == 4
    assert "vit_tiny_patch16_224" in model.card["architecture"]


def test_a_message_names_the_upload_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    folder.mkdir()
    make(folder, architecture="vit_tiny_patch16_224")
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    del weights["blocks.1.norm1.weight"]
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as raised:
        open_choice(ModelChoice("", apart(folder, tmp_path / "apart"), (("heads", 4),)))
    assert str(raised.value) == "pytorch_model: missing 'blocks.1.norm1.weight'"


def test_an_upload_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.pth: no longer kept on this server; upload it again"):
        open_choice(ModelChoice("", (str(tmp_path / "gone.pth"),)))


def test_a_name_of_the_menu_and_of_the_hub(bundled: Model) -> None:
    picker = ModelPicker(bundled)
    assert open_choice(ModelChoice(BUNDLED[0])).name == BUNDLED[0]
    assert [source for _, source in picker.choices()] == [START.source, *ZOO]
    for typed in ("owner/name", " hf:owner/name ", "https://huggingface.co/owner/name/"):
        assert picker.own(None, typed, "heads=6") == ModelChoice("hf:owner/name", (), (("heads", 6),))
    for files, hub in ((None, ""), (["a.pth"], "owner/name")):
        with pytest.raises(CheckpointError, match="expected either its file, or its name on the hub"):
            picker.own(files, hub, "")


def test_what_is_assumed_stands_below_the_predictions(tmp_path: Path) -> None:
    make(tmp_path)
    model = vitviz.load(tmp_path / "model.pth", **TOLD)
    assert len(model.assumptions) == 1
    sentence = f"Assumed, since its file does not say it: {plain(model.assumptions[0])}. “About this model” says how"
    assert "preprocessing 32×32, " in model.assumptions[0] and sentence in model_aside(model)
    said = vitviz.load(tmp_path / "model.pth", **TOLD, normalisation="half")
    assert said.assumptions == ()
    assert "Assumed" not in model_aside(said)
