"""The batches of a DataLoader: each analysis is that of its picture alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import vitviz
from tests.support.batches import check_same
from tests.support.pictures import photo
from tests.support.refusals import check_refusals
from vitviz import Analysis, ConfigError, ImageError, LimitError, Model
from vitviz.analysis.encoder import Encoder
from vitviz.datasets import BatchRequest, MapRequest, analyze_loader, rows_of

COUNT = 5


@pytest.fixture
def pictures() -> list[Image.Image]:
    return [photo(seed) for seed in range(COUNT)]


def inputs(pictures: list[Image.Image], model: Model) -> torch.Tensor:
    """As a data set's own transform would give them."""
    return torch.cat([Encoder(model).prepare(each).pixels for each in pictures])


def check_of_input(found: Analysis, alone: Analysis) -> None:
    """The same numbers, on what the model saw."""
    torch.testing.assert_close(found.logits, alone.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.rollout().values, alone.rollout().values, atol=1e-5, rtol=0)
    seen = np.asarray(found.prepared.image, int)
    own = alone.model.preprocessing.fit_image(alone.prepared.image, 4, 4)[0]
    assert np.abs(seen - np.asarray(own, int)).max() <= 1


def test_pixels_with_labels_are_inputs_of_the_model(model: Model, pictures: list[Image.Image]) -> None:
    loader = DataLoader(TensorDataset(inputs(pictures, model), torch.arange(COUNT)), batch_size=2)
    found = list(analyze_loader(loader, model))
    assert [len(analyses) for _, analyses in found] == [2, 2, 1]
    assert [int(label) for (_, labels), _ in found for label in labels] == list(range(COUNT))
    analyses = [each for _, some in found for each in some]
    assert [each.source for each in analyses] == list(range(COUNT))
    for analysis, picture in zip(analyses, pictures, strict=True):
        check_of_input(analysis, vitviz.analyze(picture, model))


@pytest.mark.slow
def test_workers_that_open_pictures(model: Model, tmp_path: Path, pictures: list[Image.Image]) -> None:
    files = [tmp_path / f"{number}.png" for number in range(COUNT)]
    for file, picture in zip(files, pictures, strict=True):
        picture.save(file)
    for batches, fit in (
        (DataLoader(pictures, batch_size=3, collate_fn=list), None),  # type: ignore[arg-type]
        (DataLoader(pictures, batch_size=3, collate_fn=list), "native"),  # type: ignore[arg-type]
        ([[str(file) for file in files]], None),
        ([{"image": pictures, "label": 3}], None),
        ([[Encoder(model).prepare(each) for each in pictures]], None),
    ):
        analyses = [each for _, some in analyze_loader(batches, model, fit) for each in some]
        for analysis, picture in zip(analyses, pictures, strict=True):
            check_same(analysis, vitviz.analyze(picture, model, fit))
    pairs = [list(zip(pictures, "abcde", strict=True))]
    found = list(analyze_loader(pairs, model, images=lambda batch: [picture for picture, _ in batch]))
    assert found[0][0] is pairs[0] and len(found[0][1]) == COUNT


def test_pictures_are_read_as_their_options_say(model: Model) -> None:
    values = np.random.default_rng(0).integers(0, 4096, (40, 40)).astype(np.uint16)
    [(_, [analysis])] = analyze_loader([[Image.fromarray(values)]], model, value_range=(0, 4095))
    assert analysis.prepared.pixels.equal(vitviz.analyze(values, model, value_range=(0, 4095)).prepared.pixels)
    with pytest.raises(ConfigError, match="color_profile"):
        analyze_loader([], model, color_profile="keep")


def test_a_batch_that_is_too_large_is_divided(model: Model, pictures: list[Image.Image]) -> None:
    pixels = inputs(pictures, model)
    encoder, sides = Encoder(model), pixels.shape[2:]
    most = encoder.cost_at(*sides, 2).nbytes
    sizes, encode = [], Encoder.encode

    def counted(self: Encoder, prepared: Any, *rest: Any) -> Any:
        sizes.append(len(prepared))
        return encode(self, prepared, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "encode", counted)
        ((_, analyses),) = analyze_loader([pixels], model, max_bytes=most)
    assert sizes == [2, 2, 1] and len(analyses) == COUNT
    with pytest.raises(LimitError, match=r"one needs .* bytes, max_bytes = 9"):
        list(analyze_loader([pixels], model, max_bytes=9))


def test_rows_are_those_of_a_batch(model: Model, pictures: list[Image.Image]) -> None:
    request = BatchRequest(model, (MapRequest("rollout"),), ("token_norms",))
    ((_, analyses),) = analyze_loader([pictures], model)
    assert [row["path"] for row in rows_of(analyses, request)] == [str(number) for number in range(COUNT)]
    for row, analysis in zip(rows_of(analyses, request, list("abcde")), analyses, strict=True):
        np.testing.assert_allclose(row["rollout"], analysis.rollout().numpy().ravel(), atol=1e-6)
        assert (row["width"], row["height"], row["sha256"]) == (30, 20, None) and row["path"] in "abcde"
    far = BatchRequest(model, (MapRequest("rollout", {"query": (30, 0)}),))
    assert "this model has" in rows_of(analyses, far)[0]["error"]


def test_what_is_no_batch_of_pictures_is_one_sentence(
    model: Model, make_model: Callable[..., Model], pictures: list[Image.Image]
) -> None:
    pixels = inputs(pictures, model)
    wrong: list[tuple[type[Exception], Any, str]] = [
        (ImageError, pixels[:, :2], r"pixels \(5, 2, .* of float32: expected floating point, .* 3 channels"),
        (ImageError, pixels[..., :-1], "multiples of the patch's 4×4"),
        (ImageError, pixels[0], "expected floating point, 'batch channel height width'"),
        (ImageError, (pixels * 255).to(torch.uint8), "of uint8: expected floating point"),
        (ImageError, pixels * 255, "once the standardisation is undone; expected 0 to 1: standardise by mean"),
        (ImageError, pixels * torch.nan, "from nan to nan once the standardisation is undone"),
        (ConfigError, {"pixels": pixels}, "a batch with 'pixels': expected column="),
        (ImageError, [(pictures[0], "cat")], "found; expected a path, bytes, a PIL image"),
        (ConfigError, 3, "expected a tensor 'batch channel height width' or a list of pictures"),
    ]
    for kind, batch, words in wrong:
        with pytest.raises(kind, match=words):
            list(analyze_loader([batch], model))
    ((_, analyses),) = analyze_loader([pictures], model)
    calls = {
        "analyze_loader: a Model found first": lambda: analyze_loader(model, [pixels]),
        ".*expected those by the model of the request": lambda: rows_of(analyses, BatchRequest(make_model())),
    }
    check_refusals(ConfigError, calls)
