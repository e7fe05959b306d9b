"""Many images in batches: what each alone gives, in order, in bounded memory, with nothing left running."""

from __future__ import annotations

import gc
import io
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

import vitviz
from tests.support.batches import check_same, workers
from tests.support.makers import MakeModel
from tests.support.pictures import photo
from tests.support.waiting import HANG_SECONDS
from vitviz import METHODS, ConfigError, ImageError, VisionTransformer, analyze, analyze_batch, cost
from vitviz.analysis.costs import cost_of
from vitviz.models.network import Encoding

MODELS: dict[str, dict[str, Any]] = {
    "CLS": {},
    "five prefix tokens": {"distillation_token": True, "register_tokens": 3},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "no classifier": {"classes": 0},
}
SIZES = [(30, 20), (30, 20), (20, 60), (20, 60), (20, 60), (90, 20), (30, 20), (24, 16), (24, 16), (24, 16), (25, 17)]


def photos() -> list[Image.Image]:
    return [photo(seed, *size) for seed, size in enumerate(SIZES)]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each forward pass was given."""
    sizes: list[int] = []
    encode = VisionTransformer.encode

    def counted(network: VisionTransformer, pixels: torch.Tensor, *rest: Any) -> Encoding:
        sizes.append(len(pixels))
        return encode(network, pixels, *rest)

    monkeypatch.setattr(VisionTransformer, "encode", counted)
    return sizes


# What comes.


@pytest.mark.slow
@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_every_map_of_an_image_in_a_batch_is_that_of_the_image_alone(
    make_model: MakeModel, changes: dict[str, Any]
) -> None:
    model, images = make_model(**changes), photos()[:3]
    for analysis, image in zip(analyze_batch(images, model, "squash"), images, strict=True):
        alone = analyze(image, model, "squash")
        for name, method in METHODS.items():
            if method.refusal(model.network.config) is None:
                found, expected = analysis.map(name).values, alone.map(name).values
                # A mask is in or out, and rounding decides at its border.
                allowed = 1 / 8 if name == "attention_mass" else 1e-3 * float(expected.abs().max())
                assert float((found - expected).abs().mean()) <= allowed


FITS = ("crop", "squash", "native")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch_size", "fit"),
    # Every pair of values that two of them can have.
    [
        (name, batch_size, FITS[(first + second) % 3])
        for first, name in enumerate(MODELS)
        for second, batch_size in enumerate((1, 3, 64))
    ],
)
def test_every_analysis_is_that_of_the_image_alone_and_in_its_place(
    make_model: MakeModel, name: str, batch_size: int, fit: str
) -> None:
    model = make_model(**MODELS[name])
    found = list(analyze_batch(photos(), model, fit, batch_size=batch_size))
    assert len(found) == len(SIZES)
    for analysis, image in zip(found, photos(), strict=True):
        check_same(analysis, analyze(image, model, fit))


@pytest.mark.slow
def test_sources_may_be_of_any_kind_and_come_from_any_iterable(make_model: MakeModel, tmp_path: Path) -> None:
    image, model, stream = photo(0), make_model(), io.BytesIO()
    image.save(stream, "PNG")
    (tmp_path / "photo.png").write_bytes(stream.getvalue())
    sources = [tmp_path / "photo.png", str(tmp_path / "photo.png"), stream.getvalue(), image, np.asarray(image)]
    for iterable in (sources, tuple(sources), (source for source in sources), dict(enumerate(sources)).values()):
        found = list(analyze_batch(iterable, model, batch_size=2))
        assert len(found) == 5
        for analysis in found:
            check_same(analysis, analyze(image, model))
    several = np.stack([np.asarray(photo(seed)) for seed in range(3)])
    for analysis, seed in zip(analyze_batch(several, model), range(3), strict=True):
        check_same(analysis, analyze(photo(seed), model))


def test_what_a_generator_changes_later_is_analysed_as_it_was(make_model: MakeModel, tmp_path: Path) -> None:
    frames, buffer, model = photos()[:2] * 3, np.empty((20, 30, 3), np.uint8), make_model()

    def refilled() -> Iterator[np.ndarray]:
        for frame in frames:
            buffer[:] = np.asarray(frame)
            yield buffer

    frames[0].save(tmp_path / "frames.tif", save_all=True, append_images=frames[1:])
    with Image.open(tmp_path / "frames.tif") as file:
        for images in (refilled(), ImageSequence.Iterator(file)):
            for each, frame in zip(analyze_batch(images, model, batch_size=4), frames, strict=True):
                check_same(each, analyze(frame, model))
        # Two threads cannot read one file at once.
        assert len(list(analyze_batch([file] * 9, model))) == 9


# How many at once.


@pytest.mark.parametrize(
    ("fit", "batch_size", "expected"),
    [
        ("squash", 4, [4, 4, 3]),
        ("squash", 64, [11]),
        ("squash", 1, [1] * 11),
        # By their shapes: 30:20 twice, 20:60 three times, 90:20, then all of 3:2.
        ("native", 64, [2, 3, 1, 5]),
        ("native", 2, [2, 2, 1, 1, 2, 2, 1]),
    ],
)
def test_images_that_follow_one_another_with_inputs_of_one_size_are_a_batch(
    make_model: MakeModel, encoded: list[int], fit: str, batch_size: int, expected: list[int]
) -> None:
    list(analyze_batch(photos(), make_model(), fit, batch_size=batch_size))
    assert encoded == expected


def test_a_batch_is_as_large_as_the_bound_allows(make_model: MakeModel, encoded: list[int]) -> None:
    model = make_model()
    config = model.network.config
    three = cost_of(config, config.layout(16, 24), 3).nbytes
    for max_bytes, expected in (
        (three, [3, 3, 3, 2]),
        (three - 1, [2] * 5 + [1]),
        (cost(photo(0), model).nbytes, [1] * 11),
    ):
        encoded.clear()
        assert len(list(analyze_batch(photos(), model, "squash", max_bytes=max_bytes))) == 11
        assert encoded == expected


@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_endless_iterable_is_taken_from_as_it_is_needed(make_model: MakeModel, batch_size: int) -> None:
    taken: list[int] = []

    def endless() -> Iterator[Image.Image]:
        for seed in count():
            taken.append(threading.get_ident())
            yield photo(seed)

    model = make_model()
    analyses = analyze_batch(endless(), model, batch_size=batch_size)
    assert taken == [], "nothing happens before it is asked for"
    for number in range(1, 20):
        check_same(next(analyses), analyze(photo(number - 1), model))
        assert number <= len(taken) < number + 3 * batch_size
    assert set(taken) == {threading.get_ident()}, "an iterable need not know about threads"
    analyses.close()
    assert workers() == []


def test_images_are_opened_by_the_workers(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    both = threading.Barrier(2, timeout=HANG_SECONDS)
    real = vitviz.open_image

    def watched(source: Any, **options: Any) -> Image.Image:
        opened.append(threading.current_thread().name)
        # Passed only where two are at it at the same time.
        both.wait()
        return real(source, **options)

    monkeypatch.setattr("vitviz.analysis.encoder.open_image", watched)
    assert len(list(analyze_batch([photo(seed) for seed in range(8)], make_model(), workers=2))) == 8
    assert {name.split("_")[0] for name in opened} == {"vitviz-batch"}
    assert len(set(opened)) == 2


# Where an image comes from.


def test_every_analysis_knows_its_file_or_its_place(make_model: MakeModel, tmp_path: Path) -> None:
    model, path = make_model(), tmp_path / "photo.png"
    photo(0).save(path)
    content = path.read_bytes()
    encoded = [
        {"bytes": None, "path": str(path)},
        {"bytes": content, "path": None},
        {"bytes": content, "path": "a.png"},
    ]
    rows: list[Any] = [{"image": path}, {"image": photo(0)}, *({"image": each, "label": 3} for each in encoded)]
    with Image.open(path) as opened:
        sources = [path, str(path), content, photo(0), opened, *rows]
        found = list(analyze_batch(sources, model, batch_size=3))
        assert analyze(opened, model).source == path
    assert [each.source for each in found] == [path, path, 2, 3, path, path, 6, path, 8, Path("a.png")]
    for each in found:
        check_same(each, analyze(path, model))
    assert analyze(path, model).source == analyze({"image": str(path)}, model).source == path
    assert analyze(photo(0), model).source is None


def test_rows_have_the_image_in_a_column(make_model: MakeModel) -> None:
    model, rows = make_model(), [{"image": None, "pixel_values": photo(seed), "label": seed} for seed in range(3)]
    for seed, analysis in enumerate(analyze_batch(rows, model, column="pixel_values")):
        check_same(analysis, analyze(photo(seed), model))
    with pytest.raises(
        ImageError, match=r"no column 'pixels'; name that of the images, as by column='.*'; did you mean 'pixel_"
    ):
        analyze(rows[0], model, column="pixels")
    with pytest.raises(ImageError, match=r"column 'image': \{'x': 1\} found; expected an image, its path or its bytes"):
        analyze({"image": {"x": 1}}, model)
    row = pytest.importorskip("pandas").DataFrame(rows).iloc[1]
    check_same(analyze(row, model, column="pixel_values"), analyze(photo(1), model))


@pytest.mark.slow
def test_closed_early_it_leaves_no_thread(make_model: MakeModel) -> None:
    model = make_model()
    analyses = analyze_batch(map(photo, count()), model, batch_size=2, workers=3)
    next(analyses)
    assert workers() != []
    analyses.close()
    assert workers() == []
    assert list(analyses) == []

    randomized_analysis = analyze_batch(map(photo, count()), model)
    next(randomized_analysis)
    del randomized_analysis
    gc.collect()
    assert workers() == []


def test_an_interrupt_of_the_forward_pass_leaves_no_thread(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(VisionTransformer, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(analyze_batch(map(photo, count()), make_model()))
    assert workers() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0: expected a whole number of at least 1"),
        ({"batch_size": 2.0}, "batch_size = 2.0: expected a whole number of at least 1"),
        ({"batch_size": True}, "batch_size = True: expected a whole number of at least 1"),
        ({"workers": 0}, "workers = 0: expected a whole number of at least 1"),
        ({"workers": None}, "workers = None: expected a whole number of at least 1"),
        ({"max_bytes": -1}, "max_bytes = -1: expected a whole number of at least 0"),
        ({"resolution": 30}, "resolution = 30: expected a multiple of the patch's 4 pixels: 28 or 32"),
        ({"storage": "int8"}, "storage 'int8': expected 'float32', 'bfloat16' or 'float16'"),
        ({"fit": "stretch"}, "fit 'stretch': expected 'crop', 'squash' or 'native'"),
    ],
)
def test_options_that_there_are_not_are_refused_at_once(
    make_model: MakeModel, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        analyze_batch([], make_model(), **options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "single", ["photo.jpg", Path("photo.jpg"), b"\xff\xd8", photo(0), np.zeros((4, 4, 3)), np.zeros((4, 4)), 3, None]
)
def test_a_single_image_is_not_taken_apart(make_model: MakeModel, single: Any) -> None:
    with pytest.raises(ConfigError, match=r"images: one \w+ found; expected several, such as a list of paths"):
        analyze_batch(single, make_model())


@pytest.mark.parametrize(("scale", "value_range"), [(255, (0, 1)), (127.5, (-1, 1)), (1, (0, 255))])
def test_tensors_are_images_where_their_range_is_declared(
    make_model: MakeModel, scale: float, value_range: tuple[int, int]
) -> None:
    model, images = make_model(), [photo(seed) for seed in range(3)]
    levels = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images])
    pixels = levels / scale + min(value_range)
    for several in (pixels, list(pixels), [{"image": each} for each in pixels]):
        found = list(analyze_batch(several, model, value_range=value_range))
        assert len(found) == 3
        for analysis, image in zip(found, images, strict=True):
            check_same(analysis, analyze(image, model))
    with pytest.raises(ImageError, match="nothing says what black and white are"):
        next(analyze_batch(pixels, model))
    assert cost(pixels[0], model, value_range=value_range) == cost(images[0], model)
