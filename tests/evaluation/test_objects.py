"""The share of attention on an object with a known outline, against the weights themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import vitviz
from tests.support.makers import MakeModel
from vitviz import VitvizError, save_checkpoint
from vitviz.cli.command import main
from vitviz.evaluation.objects import attention_on_objects, outline
from vitviz.images.callable_preprocessing import CallablePreprocessing

BACKGROUND, OBJECT = (240, 238, 235), (60, 90, 30)


def disc(width: int, height: int, box: tuple[int, int, int, int]) -> tuple[Image.Image, np.ndarray]:
    """A disc on a nearly plain background, and its mask."""
    picture, mask = Image.new("RGB", (width, height), BACKGROUND), Image.new("L", (width, height))
    ImageDraw.Draw(picture).ellipse(box, fill=OBJECT)
    ImageDraw.Draw(mask).ellipse(box, fill=255)
    noise = np.random.default_rng(0).integers(-8, 9, (height, width, 3))
    return Image.fromarray((np.asarray(picture) + noise).clip(0, 255).astype(np.uint8)), np.asarray(mask) > 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, box in enumerate([(10, 10, 40, 40), (40, 12, 80, 50), (20, 30, 70, 55)]):
        disc(96, 64, box)[0].save(tmp_path / f"{number}.png")
    pixels = np.random.default_rng(1).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    return tmp_path


def test_an_object_on_a_plain_background_has_an_outline() -> None:
    picture, mask = disc(96, 64, (20, 10, 70, 50))
    found = outline(picture)
    assert found is not None and (found & mask).sum() / (found | mask).sum() > 0.98
    # A hole, as between the spokes of a wheel, belongs to the object; a grain of dust does not.
    pierced = picture.copy()
    ImageDraw.Draw(pierced).ellipse((40, 25, 50, 35), fill=BACKGROUND)
    ImageDraw.Draw(pierced).rectangle((84, 8, 87, 11), fill=OBJECT)
    found = outline(pierced)
    assert found is not None and (found & mask).sum() / (found | mask).sum() > 0.98


@pytest.mark.parametrize("changes", [{}, {"register_tokens": 4}, {"cls_token": False, "pooling": "mean"}])
def test_the_share_on_the_object_is_that_of_the_weights(
    make_model: MakeModel, folder: Path, changes: dict[str, object]
) -> None:
    model = make_model(**changes)
    paths = sorted(folder.iterdir())
    reported: list[int] = []
    found = attention_on_objects(model, paths, reported.append)
    assert reported == [1, 2, 3, 4] and [path.name for path in found.paths] == ["0.png", "1.png", "2.png"]
    for number, path in enumerate(found.paths):
        analysis = vitviz.analyze(path, model)
        trace, layout = analysis.trace, analysis.trace.layout
        object_mask = outline(Image.open(path))
        assert object_mask is not None
        shares = object_mask.reshape(4, 16, 6, 16).mean((1, 3)).ravel()
        assert float(found.areas[number]) == pytest.approx(shares.mean())
        asking = slice(0, 1) if layout.prefix else slice(None)
        for layer in range(trace.layers):
            weights = trace.weights(layer)[:, asking, len(layout.prefix) :].double().numpy().mean(1)
            assert np.allclose(found.heads[number, layer], (weights @ shares) / weights.sum(-1), atol=1e-6)
        rollout = analysis.rollout().values.double().numpy().ravel()
        assert float(found.rollout[number]) == pytest.approx((rollout @ shares) / rollout.sum())
    assert found.query == ("the CLS token" if "cls" in layout.prefix else "the mean patch")


def test_the_best_head_is_measured_on_other_photographs(make_model: MakeModel, folder: Path) -> None:
    found = attention_on_objects(make_model(), sorted(folder.iterdir()))
    layer, head = found.best_head
    chosen = found.heads[::2].mean(0)
    assert chosen[layer, head] == chosen.max()
    share, area = float(found.heads[1, layer, head]), float(found.areas[1])
    expected = f"| head {head} of layer {layer}, the best | {share:.1%} | {area:.1%} | {share / area:.2f} |"
    assert expected in found.table().splitlines()


@pytest.mark.slow
def test_the_command_prints_a_table_and_keeps_every_number(
    make_model: MakeModel, folder: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    output_folder = tmp_path_factory.mktemp("output_folder")
    model = make_model()
    save_checkpoint(output_folder / "small.safetensors", model)
    command = [
        "evaluate-attention",
        str(folder),
        "--checkpoint",
        str(output_folder / "small.safetensors"),
        "--count",
        "4",
    ]
    assert main([*command, "--output", str(output_folder / "found.json")]) == 0
    output_text = capsys.readouterr().out
    found = attention_on_objects(model, sorted(folder.iterdir()))
    assert output_text == f"3 of 4 images show one object against a plain background.\n\n{found.table()}\n"
    saved = json.loads((output_folder / "found.json").read_text())
    assert saved["images"] == ["0.png", "1.png", "2.png"]
    assert torch.equal(torch.tensor(saved["heads"], dtype=torch.float64), found.heads)


def test_too_few_outlines_are_refused(make_model: MakeModel, folder: Path) -> None:
    with pytest.raises(VitvizError, match="1 images show an object against a plain background; expected at least two"):
        attention_on_objects(make_model(), [folder / "0.png", folder / "noise.png"])
    corner = CallablePreprocessing(lambda image: torch.from_numpy(np.array(image)[:16, :24]).permute(2, 0, 1) / 255)
    with pytest.raises(VitvizError, match="nobody says what part of the picture its preprocessing shows the model"):
        attention_on_objects(replace(make_model(), preprocessing=corner), [folder / "0.png", folder / "1.png"])
