"""A text as a target: its score is the logit that the reference package gives for the pair of image and text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
import vitviz.weights.text_tower
from tests.parity.case import randomised
from tests.reference_packages import transformers
from tests.support.visits import on_loop
from tests.towers import MAKERS, VISION, Scores, make_transformers
from vitviz import METHODS, Analysis, Model, VisionTransformer
from vitviz.cli.command import main
from vitviz.errors.kinds import CheckpointError, ConfigError, MethodError
from vitviz.evaluation.comparison import compare
from vitviz.ui.handlers import Handlers
from vitviz.ui.normalize import refusal
from vitviz.ui.service import NO_TARGET, NO_WORDS, AnalysisService
from vitviz.weights.model import Origin
from vitviz.weights.text_tower import TextTower, open_text_tower

pytestmark = pytest.mark.parity

TEXTS = ("a cat", "the cat sat on a mat and on a hat and on a mat", "dog")
# Of CLIP-type models: no attention pooling, whatever a map is about.
SERVING = [name for name in METHODS if name != "pooling_attention"]


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scores]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tower")
    return folder, MAKERS[request.param](folder)


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))


@pytest.fixture
def clip(tmp_path: Path) -> Model:
    make_transformers(tmp_path, "CLIP")
    return vitviz.load(tmp_path)


def analysed(folder: Path, picture: Image.Image) -> Analysis:
    return vitviz.analyze(picture, vitviz.load(folder))


@pytest.mark.parametrize("text", TEXTS)
def test_its_score_is_the_logit_of_the_reference(made: tuple[Path, Scores], picture: Image.Image, text: str) -> None:
    folder, scores = made
    analysis = analysed(folder, picture)
    target = open_text_tower(analysis.model).target(text)
    with torch.no_grad():
        expected = scores(analysis.prepared.pixels, text)
        found = target.score(analysis.model.network(analysis.prepared.pixels)[0])
    assert float(found) == pytest.approx(float(expected), rel=1e-4, abs=1e-4)
    assert text in target.name


def test_grad_cam_of_a_text_follows_the_gradient_of_the_reference(
    made: tuple[Path, Scores], picture: Image.Image
) -> None:
    """A step along the gradient with respect to the pixels raises the reference's logit by as much as ours says."""
    folder, scores = made
    analysis = analysed(folder, picture)
    target = open_text_tower(analysis.model).target("cat")
    gradients = []
    for score in (lambda pixels: target.score(analysis.model.network(pixels)[0]), lambda pixels: scores(pixels, "cat")):
        pixels = analysis.prepared.pixels.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(score(pixels), pixels)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients, atol=1e-4 * float(gradients[1].abs().max()), rtol=1e-3)


# How far to trust a map about a text.


def test_heads_are_ranked_about_a_text(clip: Model, picture: Image.Image) -> None:
    analysis, cat = vitviz.analyze(picture, clip), open_text_tower(clip).target("a cat")
    effects = analysis.head_effects(cat)
    assert not effects.is_probability
    assert effects.whole == pytest.approx(float(cat.score(analysis.switched_off())), abs=1e-4)
    layer, head, fall = effects.strongest(1)[0]
    assert fall == pytest.approx(effects.whole - float(cat.score(analysis.switched_off([(layer, head)]))), abs=1e-4)


def test_a_text_lifts_no_refusal_but_that_of_the_missing_classifier(
    clip: Model, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis, cat = vitviz.analyze(picture, clip), open_text_tower(clip).target("a cat")
    monkeypatch.setattr("vitviz.attribution.methods.find_spec", lambda name: None)
    message = "this needs captum: pip install 'captum>=0.9'"
    for name in ("integrated_gradients", "occlusion"):
        with pytest.raises(MethodError) as error:
            analysis.map(name, target=cat)
        assert str(error.value) == f"{name}: {message}" and refusal(METHODS[name], clip) == message
    offered = [each.method for each in compare(analysis, target=cat, metrics=()).maps]
    assert offered == [name for name in SERVING if name not in ("integrated_gradients", "occlusion")]
    pooled = replace(METHODS["relevance"], pooling=("attention", "it pools otherwise"))
    assert pooled.refusal(clip.network.config, has_target=True) == "it pools otherwise"
    assert METHODS["relevance"].refusal(clip.network.config, has_target=True) is None


def test_the_page_says_what_to_write_where_a_model_reads_texts(
    clip: Model, bundled: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "files"))
    sentences = {
        f"{NO_WORDS}.": clip,
        f"{NO_TARGET}.": replace(clip, origin=None),
    }
    for sentence, model in sentences.items():
        handlers = Handlers(AnalysisService(model))
        request = {"uid": on_loop(handlers.start())["views"][0]["uid"]}
        with pytest.raises(MethodError) as refused:
            on_loop(handlers.kinds["rank"](request, lambda state: None))
        assert f"{refused.value}." == sentence
    handlers = Handlers(AnalysisService(clip))
    request = {"uid": on_loop(handlers.start())["views"][0]["uid"], "target": {"text": "a cat"}, "heads": [[0, 0]]}
    switched, ranked = (
        on_loop(handlers.kinds["switch"](request, lambda state: None)),
        on_loop(handlers.kinds["rank"](request, lambda state: None)),
    )
    assert switched["unit"] == ranked["unit"] == "score" and ranked["target_name"] == "the text “a cat”"
    [row] = switched["rows"]
    assert row["before"] - row["after"] == pytest.approx(ranked["drops"][0][0], abs=1e-4)


def test_the_command_takes_a_text(
    clip: Model, picture: Image.Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture.save(tmp_path / "photo.png")
    arguments = [str(tmp_path / "photo.png"), "--checkpoint", str(tmp_path), "-o", str(tmp_path / "map.png")]
    assert main(["relevance", *arguments, "--text", "a cat"]) == 0
    assert "the text “a cat”" in capsys.readouterr().out and (tmp_path / "map.png").exists()


@pytest.mark.parametrize("text", ["", "  \n", "a" * 1001])
def test_a_text_without_words_or_without_end_is_refused(text: str) -> None:
    with pytest.raises(MethodError, match=r"^text of [\d,]+ characters: expected 1 to 1,000$"):
        TextTower(lambda text: torch.ones(3), 1.0, 0.0).target(text)


def test_models_without_a_text_tower_say_so(
    bundled: Model, make_network: Callable[..., VisionTransformer], clip: Model, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="a model with a classifier gives classes"):
        open_text_tower(bundled)
    unknown = replace(clip, origin=None)
    with pytest.raises(CheckpointError, match="no text tower is known for it"):
        open_text_tower(unknown)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match=r"no text tower; expected open_clip_config\.json or config\.json"):
        open_text_tower(replace(clip, origin=Origin(empty)))


def test_a_tower_that_cannot_be_opened_is_told_in_one_line(clip: Model, tmp_path: Path) -> None:
    vision = tmp_path / "vision"
    config = transformers.CLIPVisionConfig(**VISION, image_size=32, patch_size=8)
    randomised(transformers.CLIPVisionModel(config)).save_pretrained(vision)
    with pytest.raises(CheckpointError, match=r"its text tower cannot be opened \(.*\)$"):
        open_text_tower(vitviz.load(vision))


def test_a_missing_package_is_named(clip: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(origin: Origin) -> TextTower:
        raise ModuleNotFoundError(name="transformers")

    monkeypatch.setitem(vitviz.weights.text_tower.TOWERS, "config.json", missing)
    with pytest.raises(ConfigError, match=r"^a text as target needs transformers: pip install 'transformers>=5\.17'$"):
        open_text_tower(clip)


def test_features_of_another_width_are_refused(clip: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        vitviz.weights.text_tower.TOWERS, "config.json", lambda origin: TextTower(lambda text: torch.ones(7), 1, 0)
    )
    with pytest.raises(CheckpointError, match="features of 7 numbers from the text, 24 from the image"):
        open_text_tower(clip)
