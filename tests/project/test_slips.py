"""Common mistakes of newcomers: accepted if unambiguous, or answered by a helpful sentence.

The code of every row is written as in a notebook; :func:`names` defines its names.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.support.slips import LABELS, PHOTO, SLIPS
from vitviz import Heatmap, Model, Style, VitvizError
from vitviz.errors import attributes
from vitviz.errors.attributes import INSTEAD, PLACES
from vitviz.images.sources import STANDARDISED

pytestmark = pytest.mark.slow

# Unambiguous variants, and the same in correct form.
ACCEPTED = [
    ('analysis.map("relevance", target=np.int64(3))', 'analysis.map("relevance", target=3)'),
    ('analysis.map("relevance", target=torch.tensor(3))', 'analysis.map("relevance", target=3)'),
    ('analysis.map("relevance", target=torch.tensor([[3]]))', 'analysis.map("relevance", target=3)'),
    ('analysis.map("relevance", target=analysis.logits.argmax())', 'analysis.map("relevance")'),
    ('analysis.map("relevance", target="OWL")', 'analysis.map("relevance", target=3)'),
    ("analysis.attention(query=[3, 2])", "analysis.attention(query=(3, 2))"),
    ("analysis.attention(query=np.array([3, 2]))", "analysis.attention(query=(3, 2))"),
    ("analysis.attention(query=torch.tensor([3, 2]))", "analysis.attention(query=(3, 2))"),
    ("analysis.rollout(query=[np.int32(3), np.int32(2)])", "analysis.rollout(query=(3, 2))"),
    ("analysis.attention(query=np.int64(7))", "analysis.attention(query=7)"),
    ("analysis.attention(head=None, layer=None)", 'analysis.attention(head="mean", layer=-1)'),
    ("analysis.attention(head=np.int64(1), layer=torch.tensor(1))", "analysis.attention(head=1, layer=1)"),
    ("analysis.rollout(discard_ratio=torch.tensor(0.5))", "analysis.rollout(discard_ratio=0.5)"),
    ("analysis.rollout(discard_ratio=np.float64(0.5))", "analysis.rollout(discard_ratio=0.5)"),
    ("analysis.switched_off(heads=[[0, 1]])", "analysis.switched_off(heads=[(0, 1)])"),
    ("analysis.switched_off(heads=np.array([[0, 1]]))", "analysis.switched_off(heads=[(0, 1)])"),
    (
        "analysis.switched_off(patches=torch.tensor([[0, 1], [2, 3]]))",
        "analysis.switched_off(patches=[(0, 1), (2, 3)])",
    ),
    ('heatmap.overlay("viridis")', 'heatmap.overlay(Style("viridis"))'),
    ("heatmap.overlay(mark=[1, 2])", "heatmap.overlay(mark=(1, 2))"),
    ("analysis.predictions(np.int64(2))", "analysis.predictions(2)"),
    ("vitviz.analyze(Path(photo), model).logits", "analysis.logits"),
    ('vitviz.analyze({"image": photo}, model).logits', "analysis.logits"),
    ("vitviz.analyze(Image.open(photo), model).logits", "analysis.logits"),
    ("vitviz.analyze(torch.from_numpy(pixels).permute(2, 0, 1), model).logits", "analysis.logits"),
    ("vitviz.analyze(pixels / 255, model).logits", "analysis.logits"),
    ("vitviz.analyze(photo, model, resolution=np.int64(16)).logits", "analysis.logits"),
    ("model.to('cpu').network(analysis.prepared.pixels)[0]", "analysis.logits"),
]


@pytest.fixture
def names(make_model: Callable[..., Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the code of a row may use; it runs in the folder of the photo."""
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(PHOTO)
    model = replace(make_model(register_tokens=1), labels=LABELS)
    analysis = vitviz.analyze(PHOTO, model)
    modules = {"vitviz": vitviz, "np": np, "torch": torch, "io": io, "Image": Image, "Path": Path, "Style": Style}
    values = {"model": model, "analysis": analysis, "heatmap": analysis.rollout(), "photo": PHOTO, "pixels": pixels}
    return {**modules, **values}


@pytest.mark.parametrize(("code", "error", "sentence"), SLIPS, ids=[code for code, _, _ in SLIPS])
def test_a_mistake_gets_one_helpful_sentence(
    names: dict[str, Any], code: str, error: type[VitvizError], sentence: str
) -> None:
    with pytest.raises(VitvizError) as caught:
        eval(code, names)
    assert str(caught.value) == sentence
    assert type(caught.value) is error
    # The error has no visible cause.
    assert caught.value.__cause__ is None


def test_every_sentence_says_what_was_found_and_what_is_expected() -> None:
    assert len(SLIPS) >= 25
    for code, _, sentence in SLIPS:
        found, _, rest = sentence.partition(":" if ":" in sentence else ";")
        assert found and rest and "\n" not in sentence and " object at 0x" not in sentence, code
        says = ("expected ", "this model has ", "this map has ", "vitviz does not ", "lists the names", "as by column=")
        assert any(word in sentence for word in says), code


# Names that something lacks, and how the answer ends; those of INSTEAD and PLACES are tested below.
ATTRIBUTES = [
    ("analysis.gradcam()", "; did you mean 'grad_cam'?"),
    ("analysis.predict()", "; did you mean 'predictions'?"),
    ("analysis.labels", ": expected analysis.model.labels"),
    ("analysis.predictions()[0].score", "; did you mean 'probability'?"),
    ("model.named_parameters()", ": expected model.network.named_parameters()"),
    ("model.num_heads", ": expected model.network.config.heads"),
    ("vitviz.laod(photo)", "module 'vitviz' has no attribute 'laod'; did you mean 'load'?"),
    ("vitviz._secret", "module 'vitviz' has no attribute '_secret'"),
    ("vitviz.analyse(photo, model)", "; did you mean 'analyze'?"),
    ("vitviz.METHODS.gradcam", "; did you mean METHODS['grad_cam']?"),
    ("analysis.top", "; did you mean 'predictions'?"),
    ("analysis.attention_maps", "; did you mean 'attention_sheet'?"),
    ("analysis.attention_rollout()", "; did you mean 'rollout'?"),
    ("heatmap.plot()", "; did you mean 'figure'?"),
    ("vitviz.available_models()", "; did you mean 'list_models'?"),
    ("vitviz.analyze_folder('photos')", "; did you mean 'run_batch'?"),
    ("vitviz.AttentionRollout(model)", ": expected vitviz.analyze(image, model).rollout()"),
    ("analysis.zzz", "'Analysis' object has no attribute 'zzz'"),
    ("model._repr_markdown_()", "'Model' object has no attribute '_repr_markdown_'"),
]


@pytest.mark.parametrize(("code", "answer"), ATTRIBUTES, ids=[code for code, _ in ATTRIBUTES])
def test_an_unknown_attribute_is_an_error_that_says_where_the_name_is(
    names: dict[str, Any], code: str, answer: str
) -> None:
    with pytest.raises(AttributeError) as caught:
        eval(code, names)
    assert str(caught.value).endswith(answer)


# The attributes of torch's own classes are proposed without a call.
OF_TORCH = ("model.network", "analysis.model.network", "heatmap.values")
# What this model lacks, or no model has any more.
REFUSED = ("pooling_attention", "is_out_of_distribution", "ood_score")
OWNERS = {
    "vitviz": "vitviz",
    "Model": "model",
    "Analysis": "analysis",
    "Predictions": "predictions",
    "Heatmap": "heatmap",
    "Sheet": "sheet",
    "AttentionTrace": "trace",
}


def expected_code(owner: object, word: str) -> str:
    """The code that the message about an unknown attribute proposes; empty if it proposes none."""
    with pytest.raises(AttributeError) as caught:
        getattr(owner, word)
    return str(caught.value).partition(": expected ")[2]


@pytest.fixture
def pasted(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the code of a message uses."""
    monkeypatch.setattr("vitviz.visualization.drawing.OwnFigure.show", lambda figure: None)
    analysis = names["analysis"]
    values = {"trace": analysis.trace, "sheet": analysis.attention_sheet(), "predictions": analysis.predictions()}
    return {**names, **values, "image": PHOTO, "pandas": pytest.importorskip("pandas")}


@pytest.mark.parametrize(
    ("kind", "code", "words"), [(kind, *row) for kind, table in INSTEAD.items() for row in table.items()]
)
def test_what_a_message_proposes_runs_when_it_is_pasted(
    kind: str, code: str, words: str, pasted: dict[str, Any]
) -> None:
    for word in words.split():
        assert expected_code(pasted[OWNERS[kind]], word) == code, word
    if code != "model.to('cuda')" or torch.cuda.is_available():
        eval(code, pasted)


def test_the_calls_that_take_several_pictures_take_them(names: dict[str, Any]) -> None:
    prepared = names["analysis"].prepared
    expected = names["analysis"].logits
    of_folder = "vitviz.analyze_batch([each.source for each in vitviz.read_items('.')], model)"
    [analysis] = eval(of_folder, names)
    assert torch.equal(analysis.logits, expected)
    pixels = torch.from_numpy(names["pixels"]).permute(2, 0, 1)[None]
    for call in ("vitviz.analyze_batch(images, model)", "vitviz.analyze_batch(array.transpose(0, 2, 3, 1), model)"):
        [analysis] = eval(call, {**names, "images": pixels, "array": pixels.numpy()})
        assert torch.equal(analysis.logits, expected), call
    assert STANDARDISED.endswith("vitviz.analyze_loader([batch], model)")
    [(_, [analysis])] = eval("vitviz.analyze_loader([batch], model)", {**names, "batch": prepared.pixels})
    torch.testing.assert_close(analysis.logits, expected)
    maps = eval("[analysis.relevance(target) for target in ['cat', 'dog']]", names)
    assert [each.description for each in maps] != [maps[0].description] * 2


@pytest.mark.parametrize(("kind", "start", "place"), [(kind, *row) for kind, rows in PLACES.items() for row in rows])
def test_the_place_that_a_message_names_has_the_attribute(
    kind: str, start: str, place: str, pasted: dict[str, Any]
) -> None:
    owner, count = pasted[OWNERS[kind]], 0
    for word in sorted(attributes._names(attributes._find(place))):
        if hasattr(owner, word) or start not in (code := expected_code(owner, word)):
            continue
        count += 1
        if code.startswith(OF_TORCH):
            found = eval(start, pasted)
            assert code.partition("(")[0].rpartition(".")[2] in {*dir(found), *dir(type(found))}, code
        elif word not in REFUSED:
            eval(code, pasted)
    assert count or start in ("model.network", "analysis.model.network", "vitviz.metrics", "analysis"), place


PUBLIC = [value for name in vitviz.__all__ if inspect.isfunction(value := getattr(vitviz, name))]
METHODS = [
    (kind, name)
    for kind in (vitviz.Analysis, Model, Heatmap)
    for name in dir(kind)
    if name != "map" and not name.startswith("_") and inspect.isfunction(method := getattr(kind, name))
    if len(inspect.signature(method).parameters) > 1
]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__name__)
def test_every_public_function_names_an_unknown_parameter(function: Callable[..., object]) -> None:
    with pytest.raises(VitvizError, match="no parameter 'nonsense'"):
        function(nonsense=1)


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_every_method_with_parameters_names_an_unknown_one(kind: type, name: str) -> None:
    with pytest.raises(VitvizError, match="no parameter 'nonsense'"):
        getattr(kind, name)(object.__new__(kind), nonsense=1)


def test_a_property_that_fails_says_so_itself(names: dict[str, Any]) -> None:
    broken = replace(names["model"])
    object.__setattr__(broken, "network", None)
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'parameters'"):
        broken.nbytes  # noqa: B018


def test_a_model_is_not_called_and_says_what_to_do(names: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"vitviz\.analyze\(image, model\) runs it"):
        names["model"](names["analysis"].prepared.pixels)


@pytest.mark.parametrize(("code", "meant"), ACCEPTED, ids=[code for code, _ in ACCEPTED])
def test_an_unambiguous_variant_is_accepted(names: dict[str, Any], code: str, meant: str) -> None:
    found, expected = eval(code, names), eval(meant, names)
    if isinstance(expected, Heatmap):
        assert found.description == expected.description
        found, expected = found.values, expected.values
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, Image.Image):
        assert found.tobytes() == expected.tobytes()
    else:
        assert found == expected


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "I;16", "F"])
def test_a_picture_of_every_mode_is_taken(names: dict[str, Any], mode: str) -> None:
    assert vitviz.analyze(Image.new(mode, (24, 16)), names["model"]).prepared.image.mode == "RGB"
