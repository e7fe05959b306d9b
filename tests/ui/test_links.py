"""What a link and lines of Python say of a map: both make the same map again."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
import numpy as np
import pytest
from PIL import Image

import vitviz
from tests.towers import make_transformers
from tests.ui.test_drawing import ANNA, SKIPPED, Visit
from vitviz import METHODS, Model, Style, save_checkpoint
from vitviz.attention.layout import TokenLayout
from vitviz.attribution.methods import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter
from vitviz.isolation import Worker
from vitviz.ui.code import as_python
from vitviz.ui.drawing import PARTS
from vitviz.ui.following import LinkFollower, Pending
from vitviz.ui.links import Linked, Wanted, beside_words, link_of, map_words, read_link, read_map
from vitviz.ui.models import START, ModelChoice, ModelPicker
from vitviz.ui.panels import Settings, default_settings
from vitviz.ui.photo import Upload
from vitviz.ui.pictures import Pictures
from vitviz.ui.second import SecondPicker
from vitviz.ui.sight import NATIVE, Seen, Sight
from vitviz.ui.workbench import Workbench
from vitviz.weights import BUNDLED
from vitviz.weights.text_tower import TextPrompt

pytestmark = pytest.mark.parity

Make = Callable[..., Model]
# Of the small model that pools by attention, no map but this one differs.
POOLED = {"cls_token": False, "pooling": "attention"}


@pytest.fixture
def upload(tmp_path: Path) -> Upload:
    noise = np.random.default_rng(0).integers(0, 255, (32, 60, 3), dtype=np.uint8)
    # As large as the page shows it, so that its picture is the library's.
    Image.fromarray(noise).resize((900, 480)).save(tmp_path / "my noise.png")
    return Upload(tmp_path / "my noise.png", "my noise.png")


def other(parameter: Parameter) -> Any:
    """A value that is not the default."""
    match parameter:
        case Choice():
            # vit-explain knows no other parameters than its own.
            values = [value for _, value in parameter.options if value not in (parameter.default, "vit-explain")]
            return values[0] if values else parameter.default
        case Number():
            return 8 if parameter.whole else 0.3
        case LayerNumber():
            return 1
        case HeadNumber():
            return 2
        case ClassTarget():
            return 3
    return (2, 5)


def with_others(model: Model, method: str, **changes: Any) -> Settings:
    settings = default_settings(model)
    chosen = {part.name: other(part) for part in METHODS[method].parameters} | changes
    shared = {name: chosen[name] for name in ("query", "target") if name in chosen}
    parameters = {
        name: {**said, **(chosen if name == method else {key: shared[key] for key in shared if key in said})}
        for name, said in settings.parameters.items()
    }
    return replace(settings, method=method, parameters=parameters, style=Style("magma", 0.35, True, False))


def read(words: str, model: Model, sight: Sight | None = None) -> Settings:
    return read_map(dict(parse_qsl(words)), model, layout_of(model), sight or Sight(model.preprocessing.fit))


def layout_of(model: Model) -> TokenLayout:
    return model.network.config.layout(model.network.config.image_height, model.network.config.image_width)


# Of the picture that the tests upload.
SIZE = (640, 480)


def drawn_by(lines: str, method: str) -> np.ndarray:
    """The picture that lines of Python save in the folder in which they run."""
    exec(lines, {})
    with Image.open(f"{method}.png") as picture:
        return np.asarray(picture)


@pytest.mark.parametrize("method", METHODS)
def test_links_and_lines_of_python_make_the_same_map(
    make_model: Make, upload: Upload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    save_checkpoint(tmp_path / "own.safetensors", make_model(**(POOLED if method == "pooling_attention" else {})))
    choice = ModelChoice("", (str(tmp_path / "own.safetensors"),))
    bench = Workbench(make_model())
    model = bench.model(choice)
    settings = replace(with_others(model, method), sight=Sight("native", "24"))
    assert read(map_words(model, settings), model, settings.sight) == settings
    _, analysis = bench.analyze(model, upload, settings.sight)
    monkeypatch.chdir(tmp_path)
    found = drawn_by(as_python(model, bench.start, choice, upload, SIZE, settings), method)
    np.testing.assert_array_equal(found, np.asarray(bench.picture(analysis, settings).overlay))
    # What the page shows first of the method is what the library makes where nothing is said.
    plain = replace(default_settings(model), method=method)
    assert map_words(model, plain) == ("" if method == "attention" else f"tab=maps&method={method}")
    _, analysis = bench.analyze(model, upload, plain.sight)
    found = drawn_by(as_python(model, bench.start, choice, upload, SIZE, plain), method)
    np.testing.assert_array_equal(found, np.asarray(bench.picture(analysis, plain).overlay))


def test_lines_of_python_say_the_resolution_of_the_picture_itself(make_model: Make, upload: Upload) -> None:
    model = make_model()
    settings = replace(default_settings(model), sight=Sight("native", NATIVE))
    lines = as_python(model, model, START, upload, SIZE, settings)
    assert 'vitviz.analyze("my noise.png", model, fit="native", resolution=480)' in lines
    assert 'vitviz.load("small")' in lines and 'query="cls"' in lines


def test_a_model_in_another_precision_and_facts_are_said(make_model: Make, upload: Upload) -> None:
    model = make_model()
    model.network.set_precision("bfloat16")
    choice = ModelChoice("hf:somebody/model", (), (("heads", 4), ("pooling", "mean")))
    lines = as_python(model, make_model(), choice, upload, SIZE, default_settings(model))
    assert 'vitviz.load("hf:somebody/model", heads=4, pooling="mean", precision="bfloat16")' in lines


def test_a_link_says_what_the_controls_show(make_model: Make) -> None:
    model = replace(make_model(register_tokens=2), labels=("cat", "crane", "dog, hound", "crane", "owl"))
    words = map_words(model, with_others(model, "relevance", target=2, query="register 1"))
    said = {
        "method": "relevance",
        "tab": "maps",
        "p.target": "dog, hound",
        "p.start_layer": "1",
        "p.query": "register 1",
    }
    look = {"colormap": "magma", "opacity": "0.35", "smooth": "true", "grid": "false"}
    assert dict(parse_qsl(words)) == said | look
    crane = with_others(model, "relevance", target=3)
    assert dict(parse_qsl(map_words(model, crane)))["p.target"] == "crane (3)"
    assert read(map_words(model, crane), model).target == 3
    numbered = replace(with_others(model, "relevance", target=3), sight=Sight("squash"))
    assert "target=3, " in as_python(model, model, START, Upload(Path(), "a.png"), SIZE, numbered)


@pytest.mark.parametrize(
    "words",
    [
        "p.layer=-1&p.layer=3&p.head=4&p.query=9,9&p.direction=up&p.nothing=1",
        "p.layer=1.5&p.head=mean&p.query=register+1&p.target=dog",
        "p.layer=" + "9" * 5000,
        "method=nothing&p.layer=1",
        "method=pooling_attention&p.head=2&p.layer=2",
        "colormap=red&opacity=1.5&smooth=yes&grid=1&opacity=nan",
        "words=a+cat&tab=other",
    ],
)
def test_what_is_not_legal_is_left_out(make_model: Make, words: str) -> None:
    model = make_model()
    assert read(words, model) == default_settings(model)


def test_the_rest_of_a_link_is_followed_without_what_is_not_legal(make_model: Make) -> None:
    model = make_model()
    settings = read("method=rollout&p.start_layer=9&p.discard_ratio=0.9&p.residual_weight=2&grid=false", model)
    first = default_settings(model).parameters["rollout"]
    assert settings.method == "rollout" and settings.parameters["rollout"] == {**first, "discard_ratio": 0.9}
    assert settings.style == Style()


def test_a_map_about_a_text_is_said_by_link_and_by_python(
    tmp_path: Path, upload: Upload, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    worker = Worker(preload=("tests.torchvision_names",))
    request.addfinalizer(worker.close)
    (tmp_path / "clip").mkdir()
    make_transformers(tmp_path / "clip", "CLIP")
    monkeypatch.chdir(tmp_path)
    model = vitviz.load("clip")
    bench = Workbench(replace(model, name="clip"), worker=worker)
    settings = with_others(bench.start, "relevance", target=TextPrompt('a "cat" & more'), query=(2, 3))
    words = map_words(bench.start, settings)
    assert "words=a+%22cat%22+%26+more" in words and "p.target" not in words
    assert read(words, bench.start) == settings
    _, analysis = bench.analyze(bench.start, upload, settings.sight)
    found = drawn_by(as_python(bench.start, bench.start, START, upload, SIZE, settings), "relevance")
    np.testing.assert_array_equal(found, np.asarray(bench.picture(analysis, settings).overlay))
    # Without the text, there is nothing that it could be about.
    assert read("method=relevance&p.start_layer=2", bench.start).method == "attention"


def test_a_link_keeps_the_parts_of_model_and_map_apart(make_model: Make, upload: Upload) -> None:
    seen, others = "model=nothing&example=rocket.jpg&fit=crop&resolution=48", "other=1&__theme=dark"
    linked = read_link(dict(parse_qsl(f"{seen}&tab=maps&method=x&p.layer=2&words=a&{others}")))
    assert linked[:4] == (Wanted(picture=("example", "rocket.jpg")), Wanted(), "crop", "48")
    assert dict(linked.map) == {"tab": "maps", "method": "x", "p.layer": "2", "words": "a"}
    assert read_link({"tab": "secret", "__theme": "dark"}) == Linked(map=(("tab", "secret"),))
    pictures = Pictures()
    said = dict(parse_qsl(link_of(make_model(), ModelChoice(BUNDLED[0]), upload, Sight("crop"), pictures)))
    assert said == {"model": BUNDLED[0], "picture": pictures.word(upload)[1], "fit": "crop"}
    assert read_link(said).first == Wanted(BUNDLED[0], ("picture", said["picture"]))
    words = dict(parse_qsl(beside_words(START.source, upload, pictures)))
    assert words == {"second.model": "start", "second.picture": said["picture"]}
    assert read_link(words) == Linked(second=Wanted("start", ("picture", said["picture"])))
    assert beside_words("", None, pictures) == ""


@pytest.mark.parametrize("name", ["hf:facebook/dino-vits16", "hf:a/b@refs/pr/1"])
def test_a_model_of_the_hub_is_in_the_link_unless_something_is_told_of_it(
    make_model: Make, upload: Upload, name: str
) -> None:
    def of(*told: Any) -> Any:
        return dict(parse_qsl(link_of(make_model(), ModelChoice(name, *told), upload, Sight("squash"), Pictures())))

    assert read_link(of()).first.model == of()["model"] == name
    assert "model" not in of((), (("heads", 3),))


@pytest.mark.parametrize("name", ["start", "hf:a", "hf:a/b/c d", "hf:a/../../etc", "/etc/passwd", "hf:" + "a/" * 200])
def test_what_is_no_model_of_a_link_counts_as_not_said(name: str) -> None:
    assert read_link({"model": name}) == Linked()


def test_the_id_of_a_picture_is_that_of_its_content_and_gives_nothing_else(upload: Upload, tmp_path: Path) -> None:
    pictures = Pictures()
    said, key = pictures.word(upload)
    copied = tmp_path / "copy" / "my noise.png"
    copied.parent.mkdir()
    copied.write_bytes(upload.path.read_bytes())
    assert said == "picture" and len(key) == 22 and pictures.word(Upload(copied, "other.png")) == (said, key)
    assert pictures.file("picture", key) == copied
    assert Pictures().word(upload)[1] != key
    for wrong in ("", key[:-1], key[:-1] + ("a" if key[-1] != "a" else "b"), str(upload.path), "../my noise.png"):
        assert pictures.file("picture", wrong) is None
    copied.unlink()
    assert pictures.file("picture", key) is None


def test_only_the_last_pictures_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.ui.pictures.MOST_KEPT", 2)
    pictures, words = Pictures(), []
    for number in range(3):
        path = tmp_path / f"{number}.png"
        path.write_bytes(bytes([number]))
        words.append(pictures.word(Upload(path, path.name)))
    assert [pictures.file(*word) is not None for word in words] == [False, True, True]
    assert pictures.word(Upload(tmp_path / "0.png", "0.png")) != words[0]


class Followed:
    """A page that was opened by a link, and what becomes of it."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        with gr.Blocks():
            picker = ModelPicker(visit.bench.start)
            self.follower = LinkFollower(visit.panel, visit.drawing, SecondPicker(visit.bench, picker))
        self.asked: Any = None

    def open(self, **query: str) -> Any:
        request: Any = SimpleNamespace(query_params=query, session_hash="anna")
        self.asked, choice, key, *shown = self.follower.read(request)
        assert (choice, key) == (START, self.visit.shown["key"])
        return shown

    def follow(
        self, choice: ModelChoice = START, path: str = "noise.png", sight: Sight | None = None
    ) -> dict[str, Any]:
        """What changes on the page once it shows an analysis."""
        inputs = self.visit.inputs[3:]
        answer = self.follower._follow(ANNA, self.asked, 7, Seen(choice, path, sight or Sight("squash")), *inputs)
        asked, *rest = answer
        self.asked = self.asked if asked == SKIPPED else asked
        names = [
            "again",
            "fit",
            "resolution",
            "second model",
            "second picture",
            *(part.elem_id for part in self.visit.panel.restored),
            *PARTS,
        ]
        return {name: each for name, each in zip(names, rest, strict=True) if each != SKIPPED}


@pytest.fixture
def followed(make_model: Make, upload: Upload) -> Followed:
    return Followed(Visit(Workbench(make_model()), upload))


def test_the_map_is_restored_with_its_controls(followed: Followed) -> None:
    photo, *sight = followed.open(tab="maps", method="rollout", **{"p.query": "2,5", "p.start_layer": "1"})
    assert [photo, *sight] == [SKIPPED] * 3
    changes = followed.follow()
    assert changes["vv-method"]["value"] == "rollout" and changes["vv-token"]["value"] == "2,5"
    assert changes["vv-rollout-start_layer"]["value"] == 1
    assert "patch (2, 5)" in changes["caption"] and "start_layer=1" in changes["code"]
    assert parse_qsl(changes["link"])[:2] == [("tab", "maps"), ("method", "rollout")]
    # Only once.
    assert followed.asked is None and followed.follow() == {}


def test_it_waits_for_the_model_and_the_picture_and_then_chooses_how_it_is_seen(followed: Followed) -> None:
    photo, *sight = followed.open(model=BUNDLED[0], example="rocket.jpg", fit="crop", method="rollout")
    assert Path(photo).name == "rocket.jpg" and sight == ["crop", SKIPPED]
    other = ModelChoice(BUNDLED[0])
    assert followed.follow() == followed.follow(START, photo) == followed.follow(other) == {}
    # The model has brought its own.
    wanted = {"fit": "crop", "resolution": "as trained", "again": 8}
    assert followed.follow(other, photo, Sight("squash")) == wanted
    # Who has chosen another meanwhile keeps it.
    assert followed.follow(other, photo, Sight("squash")) == {}
    # What came was seen as is asked for, and the controls do not say so yet.
    assert followed.follow(other, photo, Sight("crop")) == {}
    followed.visit.controls[id(followed.visit.panel.sight.fit)] = "crop"
    assert "rollout" in followed.follow(other, photo, Sight("crop"))["caption"]


def test_an_analysis_of_older_controls_does_not_end_the_link(followed: Followed) -> None:
    """The one before the model came, with fit and resolution of the link, is told of behind it."""
    photo, *_ = followed.open(model=BUNDLED[0], example="rocket.jpg", fit="crop", resolution="24", method="rollout")
    other, asked = ModelChoice(BUNDLED[0]), Sight("crop", "24")
    assert followed.follow(other, photo, asked) == {"fit": "crop", "resolution": "24", "again": 8}
    assert followed.follow(other, photo, asked) == {}
    for part, value in zip(followed.visit.panel.sight.components, asked, strict=True):
        followed.visit.controls[id(part)] = value
    assert "rollout" in followed.follow(other, photo, asked)["caption"]


def test_parameters_that_contradict_each_other_are_left_out(followed: Followed) -> None:
    followed.open(method="rollout", **{"p.reference": "vit-explain", "p.residual_weight": "0.2"})
    changes = followed.follow()
    assert changes["link"] == "tab=maps&method=rollout" and not changes["notice"]["visible"]


def test_a_map_that_takes_long_is_wished_and_its_link_is_there_at_once(followed: Followed) -> None:
    followed.open(method="occlusion", **{"p.target": "class 3"})
    changes = followed.follow()
    assert changes["wish"].settings.target == 3 and changes["stop"]["visible"]
    assert "looks at" in changes["caption"] and 'map("attention"' in changes["code"]
    assert dict(parse_qsl(changes["link"])) == {"tab": "maps", "method": "occlusion", "p.target": "class 3"}


def test_an_uploaded_picture_is_restored_and_what_it_was_compared_with(followed: Followed, tmp_path: Path) -> None:
    bench, own = followed.visit.bench, followed.visit.upload
    key, second = bench.pictures.word(own)[1], tmp_path / "second.png"
    second.write_bytes(b"second")
    beside = bench.pictures.word(Upload(second, "second.png"))[1]
    photo, *_ = followed.open(picture=key, **{"second.picture": beside, "second.model": BUNDLED[0]})
    assert photo == str(own.path) and followed.follow(path=str(second)) == {}
    changes = followed.follow(path=photo)
    assert changes == {"second model": BUNDLED[0], "second picture": str(second)}


def test_a_picture_that_is_gone_is_said_and_the_rest_of_the_link_followed(followed: Followed) -> None:
    photo, *_ = followed.open(picture="x" * 22, method="rollout")
    assert photo == SKIPPED
    changes = followed.follow()
    assert "no longer kept" in changes["notice"]["value"] and changes["notice"]["visible"]
    assert "rollout" in changes["caption"]
    followed.open(**{"second.picture": "x" * 22})
    assert "no longer kept" in followed.follow()["notice"]["value"]


def test_a_page_without_a_link_has_nothing_to_follow(followed: Followed) -> None:
    assert followed.open(__theme="dark") == [SKIPPED] * 3
    assert followed.asked is None and followed.follow() == {}
    assert not Pending(Linked()).awaits(Seen(START, "", Sight("squash")))


def test_the_lines_of_python_have_no_letter_that_turns_them_round(make_model: Make, upload: Upload) -> None:
    bench, name = Workbench(make_model()), 'a\u202egnp."\n\u2028é.png'
    lines = as_python(bench.start, bench.start, START, upload._replace(name=name), SIZE, default_settings(bench.start))
    said = lines.partition("vitviz.analyze(")[2].partition(", model")[0]
    assert said == r'"a\u202egnp.\"\n\u2028é.png"' and ast.literal_eval(said) == name
