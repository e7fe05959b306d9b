"""What a module does not say of itself is asked for by name, and what cannot be is refused in one sentence."""

from __future__ import annotations

import io
import itertools
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from einops import rearrange
from torch import nn

import vitviz
from tests.support.modules import LABELS, SIZE, OwnViT, load_own, picture
from vitviz import Preprocessing, VitvizError
from vitviz.progress import Progress
from vitviz.weights.modules.as_model import PASSES

pytestmark = pytest.mark.slow

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no image size": ({"image_size": None}, "OwnViT: the module does not say its image_size; expected image_size = .*"),
    "no preparation": (
        {"normalisation": None},
        "OwnViT: the module does not say its normalisation; expected normalisation = .*; or preprocessing = a .*",
    ),
    "no labels": (
        {"labels": None},
        r"OwnViT: the module does not say its labels; expected labels = 5 names .*, or \(\) where they are .*",
    ),
    "few labels": ({"labels": ["a"]}, r"OwnViT: an output of shape \(1, 5\) for 1 labels; expected 'batch class', .*"),
    "one text": ({"labels": "abcde"}, "labels = 'abcde': expected a name for each class from 0 on, .*"),
    "a gap": ({"labels": {0: "a", 2: "b"}}, "labels = .*: expected a name for each class from 0 on, .*"),
    "heads": ({"heads": 3}, "heads: a module says itself; expected device, report, normalisation, .*"),
    "precision": ({"precision": "bfloat16"}, "precision: a module says itself; .*"),
    "verify": ({"verify": True}, "verify: a module says itself; .*"),
    "device": ({"device": "nowhere"}, "device 'nowhere': this machine has none of this name; .*"),
    "part of a patch": ({"image_size": (16, 25)}, "image of 16×25 pixels .*: both sides must be a multiple of .* 4×4"),
    "no size": ({"image_size": 0}, "image_size = 0: expected one or two whole numbers above 0 .*"),
    "a text for tokens": ({"prefix": "cls"}, "prefix = 'cls': expected a list of names, .*, or their number"),
    "a token twice": ({"prefix": ["cls", "cls"]}, "prefix = cls, cls: names must differ"),
    "no preprocessing": ({"preprocessing": 3}, "preprocessing = 3: expected a vitviz.Preprocessing, .*"),
    "no normalisation": ({"normalisation": "clp"}, "normalisation 'clp': expected .*; did you mean 'clip'.*"),
    "another output": ({"forward": lambda module, pixels: module(pixels)[0]}, "OwnViT: an output of shape .*"),
    "no output": (
        {"forward": lambda module, pixels: {"a": 1}},
        "OwnViT: the module returns .*; expected a tensor, or forward=.*",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_or_missing_argument_is_one_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(VitvizError, match=f"^{message}$"):
        load_own(OwnViT(), **arguments)


def pasted(error: VitvizError, module: nn.Module) -> vitviz.Model:
    """The model that the call in a message opens."""
    model: vitviz.Model = eval(str(error).partition("; such as ")[2], {"vitviz": vitviz, "module": module})
    return model


class Positions(OwnViT):
    """A class that says nothing of itself, and runs on images of its own size only."""

    def __init__(self, registers: int = 0) -> None:
        super().__init__(registers=registers)
        del self.cls_token
        self.summary = nn.Parameter(torch.randn(1, 1, 32))
        self.positions = nn.Parameter(torch.randn(1, 37 + registers, 32))

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.embedding(pixels).flatten(2).transpose(1, 2)
        return torch.cat([self.summary, patches, self.last_tokens], 1) + self.positions


@pytest.mark.parametrize("registers", [0, 2])
def test_one_message_asks_for_all_that_a_class_lacks_and_its_call_opens_it(registers: int) -> None:
    module = Positions(registers)
    asks = r"the module does not say its image_size, labels, prefix, normalisation; .*image_size=24, "
    with pytest.raises(VitvizError, match=asks) as e:
        vitviz.load(module)
    model = pasted(e.value, module)
    assert model.network.config.layout(24, 24).token_count == 37 + registers
    assert len(model.labels) == 5
    # What was stated stays in the call.
    with pytest.raises(VitvizError, match=r"does not say its image_size, labels; .*normalisation='clip'.*") as e:
        vitviz.load(module, normalisation="clip", prefix=model.network.config.prefix)
    assert pasted(e.value, module).network.config.prefix == model.network.config.prefix


class Flat(OwnViT):
    """Patches by a linear map, and positions in a table."""

    def __init__(self) -> None:
        super().__init__()
        del self.cls_token
        self.embedding = nn.Linear(48, 32)
        self.position_table = nn.Embedding(38, 32)
        self.summary = nn.Parameter(torch.randn(2, 32))

    def tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.embedding(nn.functional.unfold(pixels, 4, stride=4).mT)
        return torch.cat([self.summary[None], patches], 1) + self.position_table.weight


def test_the_patches_of_a_linear_map_are_found_by_the_number_of_tokens() -> None:
    module = Flat().eval()
    with pytest.raises(VitvizError, match="does not say its labels, prefix, normalisation; ") as error:
        vitviz.load(module, image_size=24)
    config = pasted(error.value, module).network.config
    assert (config.image_height, config.patch_height, config.prefix) == (24, 4, ("cls", "register 1"))


def test_arguments_of_modules_do_not_fit_checkpoints() -> None:
    with pytest.raises(
        VitvizError, match=r"^prefix, forward: of a module in memory alone; a checkpoint says it itself$"
    ):
        vitviz.load(prefix=["cls"], forward=lambda module, pixels: module(pixels))


def test_a_module_on_another_device_than_asked_stays_there() -> None:
    model = load_own(OwnViT(), device="cpu")
    assert model.to("cpu") is model
    with pytest.raises(VitvizError, match=r"^device 'meta'"):
        model.to("meta")


def test_what_is_given_is_used() -> None:
    module, preprocessing = OwnViT(classes=0), Preprocessing(*SIZE, (0.1,) * 3, (0.2,) * 3, "squash")
    model = load_own(module, preprocessing=preprocessing, normalisation=None, labels=())
    assert model.preprocessing is preprocessing
    assert model.labels == ()
    pixels = torch.randn(1, 3, *SIZE)
    assert model.network.encode(pixels).logits.shape == (1, 0)
    assert torch.equal(model.network(pixels), module(pixels))
    assert load_own(OwnViT(), labels=dict(enumerate(LABELS))).labels == LABELS
    assert model.card["watched from"] == "tests.support.modules.OwnViT"


def test_tokens_of_several_kinds_need_names_in_a_package_that_nobody_knows() -> None:
    class Registers(OwnViT):
        def __init__(self) -> None:
            super().__init__(registers=2)
            self.register_tokens = nn.Parameter(torch.zeros(1, 2, 32))

    with pytest.raises(VitvizError, match=r"^Registers: the module does not say its prefix; expected prefix = .*$"):
        load_own(Registers(), prefix=None)
    for prefix in (["cls", "register 1", "register 2"], 3):
        layout = load_own(Registers(), prefix=prefix).network.config.layout(*SIZE)
        assert layout.prefix == ("cls", "register 1", "register 2")
    # A single kind is found by the name of its parameter, and counted in the tokens.
    assert load_own(OwnViT(), prefix=None).network.config.prefix == ("cls",)


class LinearPatches(nn.Module):
    """A network whose patches are cut by reshaping and embedded by a matrix."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.image_size, self.patch_size = 16, 4
        self.embedding, self.mix, self.head = nn.Linear(16 * channels, 8), nn.Conv2d(8, 8, 1), nn.Linear(8, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        order = "batch channel (row py) (column px) -> batch (row column) (py px channel)"
        tokens = self.embedding(rearrange(pixels, order, py=4, px=4))
        return self.head((tokens + self.attention(tokens, tokens, tokens)[0]).mean(1))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("is_stated", [True, False])
def test_channels_that_no_convolution_states_are_stated_or_found(channels: int, is_stated: bool) -> None:
    module = LinearPatches(channels).eval()
    preparation: dict[str, Any] = {"normalisation": "half"}
    if is_stated:
        preparation = {"preprocessing": Preprocessing(16, 16, (0.1,) * channels, (0.3,) * channels)}
    model = vitviz.load(module, labels=["a", "b"], **preparation)
    assert model.network.config.channels == len(model.preprocessing.mean) == channels
    analysis = vitviz.analyze(np.full((16, 16), 7, np.uint8), model)
    with torch.no_grad():
        torch.testing.assert_close(analysis.logits, module(analysis.prepared.pixels)[0], rtol=0, atol=1e-6)


# Patches.


@pytest.mark.parametrize("patch_size", [None, 4])
def test_patches_that_overlap_are_refused_by_name(patch_size: int | None) -> None:
    module = OwnViT()
    module.embedding.stride = (3, 3)
    with pytest.raises(VitvizError, match="its patches overlap, 4×4 pixels with a stride of 3×3"):
        load_own(module, patch_size=patch_size)


def test_oblong_patches_of_a_convolution_are_found_where_squares_would_be_as_many() -> None:
    module = OwnViT()
    module.embedding = nn.Conv2d(3, 32, (8, 2), (8, 2)).eval()
    config = load_own(module).network.config
    assert (config.patch_height, config.patch_width) == (8, 2)


class Captioner(nn.Module):
    """A model of another package that needs a text."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"visual_encoder": OwnViT(), "texts": nn.Embedding(9, 5)})

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        return self.model["visual_encoder"](image) + self.model["texts"](text)


def test_the_part_of_a_model_that_takes_pictures_is_named() -> None:
    module = Captioner().eval()
    with pytest.raises(VitvizError, match=r"vitviz\.load\(module\.model\.visual_encoder\)"):
        load_own(module)
    assert load_own(module.get_submodule("model.visual_encoder")).labels == LABELS


# While a module is watched.


def test_the_progress_of_watching_is_reported() -> None:
    reports: list[Progress] = []
    model = load_own(OwnViT(), report=reports.append)
    assert [each.done for each in reports] == [*range(1, len(reports) + 1)] and len(reports) > 10
    assert {each.total for each in reports} == {PASSES} and reports[-1].done <= PASSES
    before = len(reports)
    vitviz.analyze(picture(), model).rollout()
    model.network.output(torch.randn(1, 3, *SIZE), "features")
    assert len(reports) == before


def test_a_terminal_shows_a_bar_from_the_first_second_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    for is_terminal, seconds in ((True, 0.3), (True, 1e-6), (False, 0.3)):
        clock, screen = itertools.count(0, seconds), io.StringIO()
        screen.isatty = lambda shown=is_terminal: shown  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setattr("tqdm.std.time", lambda clock=clock: next(clock))
        load_own(OwnViT())
        is_shown = is_terminal and seconds > 0.1
        assert ("watching OwnViT" in screen.getvalue() and "/25" in screen.getvalue()) == is_shown
    # In a notebook, too, whose stream is no terminal.
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    clock, screen = itertools.count(0, 0.3), io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    load_own(OwnViT())
    assert "watching OwnViT" in screen.getvalue()
