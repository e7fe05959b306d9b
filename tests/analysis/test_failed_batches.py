"""What goes wrong in a batch concerns the image alone that it is about, and leaves nothing running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.support.batches import check_same, workers
from tests.support.makers import MakeModel
from tests.support.pictures import photo
from vitviz import Analysis, FailedAnalysis, ImageError, LimitError, VisionTransformer, analyze, analyze_batch, cost
from vitviz.models.network import Encoding


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_a_bad_image_is_told_in_its_place(make_model: MakeModel, batch_size: int, at: int) -> None:
    model = make_model()
    sources: list[Any] = [photo(seed) for seed in range(6)]
    sources[at] = b"no image"
    analyses = analyze_batch(sources, model, batch_size=batch_size)
    for seed in range(at):
        check_same(next(analyses), analyze(photo(seed), model))
    with pytest.raises(ImageError, match="a text file"):
        next(analyses)
    assert list(analyses) == []
    assert workers() == []


BROKEN = (0, 2, 3, 6)


def with_broken(count: int = 7) -> list[Any]:
    return [b"no image" if place in BROKEN else photo(place) for place in range(count)]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
def test_a_bad_image_is_skipped(make_model: MakeModel, batch_size: int) -> None:
    model = make_model()
    found = list(analyze_batch(with_broken(), model, batch_size=batch_size, on_error="skip"))
    assert [analysis.source for analysis in found] == [1, 4, 5]
    for analysis in found:
        check_same(analysis, analyze(photo(int(str(analysis.source))), model))
    assert list(analyze_batch([b"no image"] * 20, model, batch_size=batch_size, on_error="skip")) == []
    assert workers() == []


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
def test_a_bad_image_is_kept_as_its_error(make_model: MakeModel, batch_size: int, tmp_path: Path) -> None:
    model, sources = make_model(), [*with_broken(), tmp_path / "gone.png", {"image": str(tmp_path / "gone.png")}, {}]
    found = list(analyze_batch(sources, model, batch_size=batch_size, on_error="keep"))
    assert [each.source for each in found] == [*range(7), tmp_path / "gone.png", tmp_path / "gone.png", 9]
    for place, each in enumerate(found):
        if place in BROKEN or place >= 7:
            assert isinstance(each, FailedAnalysis) and isinstance(each.error, ImageError)
        else:
            assert isinstance(each, Analysis)
            check_same(each, analyze(photo(place), model))
    assert "a text file" in str(found[0].error) and "gone.png: no such file" in str(found[7].error)
    assert str(found[9].error).startswith("a row without columns: no column 'image'")
    assert workers() == []


@pytest.mark.parametrize("on_error", ["skip", "keep"])
def test_an_image_that_needs_more_than_is_allowed_does_not_end_the_others(make_model: MakeModel, on_error: Any) -> None:
    model = make_model(fit="native")
    sources = [photo(0), photo(1), photo(2, 20, 20), photo(3)]
    allowed = cost(sources[0], model).nbytes
    found = list(analyze_batch(sources, model, max_bytes=allowed, on_error=on_error))
    assert [each.source for each in found if isinstance(each, Analysis)] == [0, 1, 3]
    failed = [each for each in found if isinstance(each, FailedAnalysis)]
    assert [type(each.error) for each in failed] == [LimitError] * (on_error == "keep")


def test_a_batch_for_which_there_is_no_memory_is_tried_one_by_one(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = VisionTransformer.encode

    def short(network: VisionTransformer, pixels: torch.Tensor, *rest: Any) -> Encoding:
        if len(pixels) > 1 or float(pixels.mean()) > 0.5:
            raise MemoryError
        return encode(network, pixels, *rest)

    monkeypatch.setattr(VisionTransformer, "encode", short)
    sources, model = [photo(0), Image.new("RGB", (30, 20), "white"), photo(2)], make_model()
    found = list(analyze_batch(sources, model, on_error="keep"))
    assert [type(each) for each in found] == [Analysis, FailedAnalysis, Analysis]
    assert isinstance(found[1], FailedAnalysis) and "not enough memory" in str(found[1].error)
    assert [each.source for each in analyze_batch(sources, model, on_error="skip")] == [0, 2]
    with pytest.raises(LimitError):
        next(analyze_batch(sources, model))


@pytest.mark.parametrize("on_error", ["skip", "keep"])
def test_what_goes_wrong_in_the_iterable_ends_the_analyses(make_model: MakeModel, on_error: Any) -> None:
    def failing() -> Iterator[Image.Image]:
        yield photo(0)
        raise ZeroDivisionError("mine")

    analyses = analyze_batch(failing(), make_model(), on_error=on_error)
    assert next(analyses).source == 0
    with pytest.raises(ZeroDivisionError, match="mine"):
        next(analyses)
    assert workers() == []
