"""A text as a target: its score is the logit that the package gives for the pair of picture and text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.hub_server import HubServer
from tests.parity.case import randomised
from tests.reference_packages import open_clip, transformers
from tests.support.modules import OwnViT, load_own
from tests.support.visits import on_loop
from tests.towers import MAKERS, TEXT, VISION, Scores, make_transformers, write_tokenizer
from vitviz import METHODS, Analysis, Model
from vitviz.cli.command import main
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.evaluation.comparison import compare
from vitviz.ui.handlers import Handlers
from vitviz.ui.normalize import refusal
from vitviz.ui.service import NO_TARGET, NO_WORDS, AnalysisService
from vitviz.weights.text_tower import TextTower

pytestmark = pytest.mark.parity

WORDS = "a cat"
TEXTS = (WORDS, "dog")
LONG = "the cat sat on a mat and on a hat and on a mat " * 8
SIZE = {"image_size": 32, "patch_size": 8}
# Of CLIP-type models: no attention pooling, whatever a map is about.
SERVING = [name for name in METHODS if name != "pooling_attention"]


@pytest.fixture(scope="module", params=MAKERS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Scores]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tower")
    scores = MAKERS[request.param](folder)
    return vitviz.load(folder), scores


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8))


@pytest.fixture
def clip(tmp_path: Path) -> Model:
    make_transformers(tmp_path, "CLIP")
    return vitviz.load(tmp_path)


RUNS_CODE = {"hf_tokenizer_name": "someone/clip", "tokenizer_kwargs": {"trust_remote_code": True}}


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(file.read_text())
    edit(values)
    file.write_text(json.dumps(values))


def found_logit(analysis: Analysis, text: str) -> float:
    with torch.no_grad():
        return float(analysis.model.text(text).score(analysis.network.output(analysis.prepared.pixels, "features")[0]))


@pytest.mark.parametrize("text", TEXTS)
def test_its_score_is_the_logit_of_the_package(made: tuple[Model, Scores], picture: Image.Image, text: str) -> None:
    model, scores = made
    assert model.reads_text and model.engine == "module" and model.labels == ()
    analysis = vitviz.analyze(picture, model)
    with torch.no_grad():
        expected = float(scores(analysis.prepared.pixels, text))
    assert found_logit(analysis, text) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert text in model.text(text).name


def test_a_text_that_is_not_read_to_its_end_is_refused(made: tuple[Model, Scores]) -> None:
    with pytest.raises(MethodError, match=r"'the cat sat .*': of \d+ tokens, all that this model reads, or more"):
        made[0].text(LONG)


def test_a_text_against_another_is_the_difference_of_their_scores(clip: Model, picture: Image.Image) -> None:
    analysis = vitviz.analyze(picture, clip)
    first, second = clip.text("a cat"), clip.text("dog")
    difference = vitviz.contrast(first, second)
    assert difference.name == "the text “a cat” against the text “dog”" and "tensor" not in repr(difference)
    output = analysis.network.output(analysis.prepared.pixels, "features")[0]
    torch.testing.assert_close(difference.score(output), first.score(output) - second.score(output))
    assert "against the text “dog”" in analysis.relevance(target=difference).description
    with pytest.raises(MethodError, match="or two targets that read the same output"):
        vitviz.contrast(first, "dog")
    with pytest.raises(MethodError, match=r"expected a text or another picture in its place, as model\.text"):
        analysis.relevance(target="a cat")


def test_grad_cam_of_a_text_follows_the_gradient_of_the_package(
    made: tuple[Model, Scores], picture: Image.Image
) -> None:
    model, scores = made
    analysis, target = vitviz.analyze(picture, model), model.text("cat")
    gradients = []
    for score in (lambda pixels: target.score(model.network(pixels)[0]), lambda pixels: scores(pixels, "cat")):
        pixels = analysis.prepared.pixels.clone().requires_grad_()
        gradients.append(torch.autograd.grad(score(pixels), pixels)[0])
    torch.testing.assert_close(*gradients, atol=1e-4 * float(gradients[1].abs().max()), rtol=1e-3)


# Modules in memory.


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return transformers.CLIPTokenizer.from_pretrained(folder)


def clip_module() -> Any:
    config = transformers.CLIPConfig(vision_config=VISION | SIZE, text_config=VISION | TEXT, projection_dim=24)
    return randomised(transformers.CLIPModel(config))


def test_a_processor_brings_its_tokenizer(tokenizer: Any, picture: Image.Image) -> None:
    network = clip_module()
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = transformers.CLIPProcessor(image_processor=images, tokenizer=tokenizer)
    analysis = vitviz.analyze(picture, vitviz.load(network, preprocessing=processor))
    tokens = tokenizer([WORDS], padding="max_length", max_length=10, truncation=True, return_tensors="pt")
    with torch.no_grad():
        expected = float(network(pixel_values=analysis.prepared.pixels, **tokens).logits_per_image)
    assert found_logit(analysis, WORDS) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert analysis.relevance(target=analysis.model.text(WORDS)).values.shape == (4, 4)


def test_pictures_of_any_shape_have_texts(tokenizer: Any, picture: Image.Image) -> None:
    vision = VISION | {"patch_size": 8, "num_patches": 16}
    config = transformers.Siglip2Config(vision_config=vision, text_config=VISION | TEXT | {"projection_size": 32})
    network = randomised(transformers.Siglip2Model(config))
    analysis = vitviz.analyze(
        picture, vitviz.load(network, normalisation="half", image_size=32, tokenizer=tokenizer, engine="module")
    )
    rows = analysis.prepared.pixels.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).reshape(1, 16, -1)
    tokens = tokenizer([WORDS], padding="max_length", max_length=10, truncation=True, return_tensors="pt")
    masks = {"pixel_attention_mask": torch.ones(1, 16, dtype=torch.long), "spatial_shapes": torch.tensor([[4, 4]])}
    with torch.no_grad():
        expected = float(network(pixel_values=rows, **masks, **tokens).logits_per_image)
    assert found_logit(analysis, WORDS) == pytest.approx(expected, rel=1e-4, abs=1e-4)


# Tokenizers.


def test_a_checkpoint_of_the_hub_brings_its_tokenizer(server: HubServer, tmp_path: Path, picture: Image.Image) -> None:
    make_transformers(tmp_path, "CLIP")
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    server.add("someone/clip", {**files, "README.md": b"# CLIP", "evil.py": b"a"})
    model = vitviz.load("hf:someone/clip")
    asked = len(server.log)
    analysis = vitviz.analyze(picture, model)
    expected = found_logit(vitviz.analyze(picture, vitviz.load(tmp_path)), WORDS)
    assert found_logit(analysis, WORDS) == pytest.approx(expected, abs=1e-6)
    assert len(server.log) == asked and not server.requests("evil.py")


@pytest.mark.parametrize("source", ["a folder", "a module"])
def test_a_missing_tokenizer_is_asked_for_when_a_text_comes(source: str, tmp_path: Path, picture: Image.Image) -> None:
    if source == "a folder":
        make_transformers(tmp_path, "CLIP")
        for name in ("tokenizer.json", "vocab.json", "merges.txt"):
            (tmp_path / name).unlink(missing_ok=True)
        model = vitviz.load(tmp_path)
    else:
        model = vitviz.load(clip_module(), normalisation="clip")
    assert vitviz.analyze(picture, model).rollout().values.shape == (4, 4)
    with pytest.raises(MethodError, match=r"its tokenizer; expected vitviz\.load\(module, preprocessing=processor\)"):
        model.text(WORDS)


@pytest.mark.parametrize("kind", ["CLIP", "open_clip"])
def test_a_tokenizer_of_a_folder_runs_no_code_of_it(kind: str, tmp_path: Path) -> None:
    if kind == "CLIP":
        make_transformers(tmp_path, kind)
    else:
        MAKERS[kind](tmp_path)
        write_tokenizer(tmp_path)
        change(tmp_path / "open_clip_config.json", lambda values: values["model_cfg"]["text_cfg"].update(RUNS_CODE))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    code = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil", "trust_remote_code": True}
    change(tmp_path / "tokenizer_config.json", lambda values: values.update(code))
    assert vitviz.load(tmp_path).reads_text
    assert not (tmp_path / "ran").exists()


def test_a_tokenizer_of_a_module_without_texts_is_refused() -> None:
    with pytest.raises(ConfigError, match="tokenizer: the module reads no texts; expected one with get_text_features"):
        load_own(OwnViT(), tokenizer=str.split)


def test_open_clip_s_own_tokenizer_is_assumed_for_its_vocabulary(picture: Image.Image, tmp_path: Path) -> None:
    scores = MAKERS["open_clip"](tmp_path)
    module = open_clip.create_model(f"local-dir:{tmp_path}").eval()
    model = vitviz.load(module, normalisation="clip")
    assert any("open_clip's own tokenizer" in each for each in model.assumptions)
    analysis = vitviz.analyze(picture, model)
    with torch.no_grad():
        expected = float(scores(analysis.prepared.pixels, WORDS))
    assert found_logit(analysis, WORDS) == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("text", ["", "  \n", "a" * 1001])
def test_a_text_without_words_or_without_end_is_refused(text: str) -> None:
    with pytest.raises(MethodError, match=r"^text of [\d,]+ characters: expected 1 to 1,000$"):
        TextTower(lambda text: torch.ones(3), 1.0, 0.0).target(text)


def test_models_without_texts_say_so(bundled: Model) -> None:
    assert not bundled.reads_text
    with pytest.raises(MethodError, match=r"^vitviz-photos: it reads no texts; expected a network of pictures"):
        bundled.text(WORDS)


# How far to trust a map about a text.


def test_heads_are_ranked_about_a_text(clip: Model, picture: Image.Image) -> None:
    analysis, cat = vitviz.analyze(picture, clip), clip.text(WORDS)
    effects = analysis.head_effects(cat)
    assert effects.whole == pytest.approx(float(cat.score(analysis.switched_off())), abs=1e-4)
    layer, head, fall = effects.strongest(1)[0]
    assert fall == pytest.approx(effects.whole - float(cat.score(analysis.switched_off([(layer, head)]))), abs=1e-4)


def test_a_text_lifts_no_refusal_but_that_of_the_missing_classifier(
    clip: Model, picture: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis, cat = vitviz.analyze(picture, clip), clip.text(WORDS)
    monkeypatch.setattr("vitviz.attribution.methods.find_spec", lambda name: None)
    message = "this needs captum: pip install 'captum>=0.9'"
    for name in ("integrated_gradients", "occlusion"):
        with pytest.raises(MethodError) as error:
            analysis.map(name, target=cat)
        assert str(error.value) == f"{name}: {message}" and refusal(METHODS[name], clip) == message
    offered = [each.method for each in compare(analysis, target=cat, metrics=()).maps]
    refused = [name for name in SERVING if METHODS[name].refusal(clip.network.config, has_target=True)]
    assert offered == [name for name in SERVING if name not in refused]
    pooled = replace(METHODS["relevance"], pooling=("attention", "it pools otherwise"))
    assert pooled.refusal(clip.network.config, has_target=True) == "it pools otherwise"
    assert METHODS["relevance"].refusal(clip.network.config, has_target=True) is None


def test_the_page_says_what_to_write_where_a_model_reads_texts(
    clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "files"))
    for sentence, model in {NO_WORDS: clip, NO_TARGET: replace(clip, tower=None)}.items():
        handlers = Handlers(AnalysisService(model))
        request = {"uid": on_loop(handlers.start())["views"][0]["uid"]}
        with pytest.raises(MethodError) as refused:
            on_loop(handlers.kinds["rank"](request, lambda state: None))
        assert str(refused.value) == sentence
    handlers = Handlers(AnalysisService(clip))
    request = {"uid": on_loop(handlers.start())["views"][0]["uid"], "target": {"text": WORDS}, "heads": [[0, 0]]}
    switched, ranked = (on_loop(handlers.kinds[kind](request, lambda state: None)) for kind in ("switch", "rank"))
    assert switched["unit"] == ranked["unit"] == "score" and ranked["target_name"] == f"the text “{WORDS}”"
    [row] = switched["rows"]
    assert row["before"] - row["after"] == pytest.approx(ranked["drops"][0][0], abs=1e-4)


def test_the_command_takes_a_text(
    clip: Model, picture: Image.Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture.save(tmp_path / "photo.png")
    arguments = [str(tmp_path / "photo.png"), "--checkpoint", str(tmp_path), "-o", str(tmp_path / "map.png")]
    assert main(["relevance", *arguments, "--text", WORDS]) == 0
    assert f"the text “{WORDS}”" in capsys.readouterr().out and (tmp_path / "map.png").exists()
