"""Preprocessing read by its fields has the pixels of the package that states it, or is not read at all."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reference_packages import timm, transformers
from tests.support.heatmaps import noise
from tests.support.long_runs import SEED
from vitviz import CheckpointError, Preprocessing
from vitviz.images.callable_preprocessing import call
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.metadata.normalisations import HALVES, IMAGENET
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.stated_preprocessing import find_rule, timm_rule
from vitviz.weights.modules.transforms import read_transform

pytestmark = pytest.mark.parity

PICTURES = [noise(width, height) for width, height in ((97, 61), (64, 333), (33, 34))]
Draw = random.Random
# The processors of plain towers, and some that do more than their fields state, or replace how it is done.
PLAIN = ("ViT", "CLIP", "Siglip", "Bit", "DeiT", "Beit", "DINOv3ViT", "Blip")
OTHERS = ("Levit", "PoolFormer", "EfficientNet", "ConvNext", "SuperPoint", "DPT", "DepthPro", "Llama4", "MobileViT")


def drawn(chance: float, draw: Draw, values: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    return {name: value() for name, value in values.items() if draw.random() < chance}


def side(draw: Draw) -> int:
    return draw.randint(20, 80)


def drawn_size(draw: Draw) -> Any:
    square, other = side(draw), side(draw)
    return draw.choice(
        [
            *(square, [square, other], {"height": square, "width": square}, {"height": square, "width": other}),
            *({"shortest_edge": square}, {"shortest_edge": 40, "longest_edge": 70}, {"longest_edge": square}),
            {"max_height": square, "max_width": other},
        ]
    )


def moments(draw: Draw) -> Any:
    return draw.choice([[round(draw.uniform(0.1, 1), 3) for _ in range(3)], 0.4])


def processor_fields(draw: Draw) -> dict[str, Any]:
    """Fields of an image processor, any of which a file may leave out."""
    often = {"size": lambda: drawn_size(draw), "crop_size": lambda: drawn_size(draw)}
    sometimes = {
        "do_center_crop": lambda: draw.random() < 0.7,
        "resample": lambda: draw.randint(0, 5),
        "rescale_factor": lambda: draw.choice([1 / 256, 1 / 127.5, 1.0, 0.5]),
        "image_mean": lambda: moments(draw),
        "image_std": lambda: moments(draw),
    }
    switches = ("do_resize", "do_rescale", "do_normalize", "do_pad", "default_to_square", "do_convert_rgb")
    rarely: dict[str, Callable[[], Any]] = {name: lambda: draw.choice([True, False, None]) for name in switches}
    return drawn(0.6, draw, often) | drawn(0.35, draw, sometimes) | drawn(0.12, draw, rarely)


def check_pixels(preprocessing: Preprocessing, reference: Callable[..., Any], what: object, patch: int = 1) -> None:
    for picture in PICTURES:
        found, expected = preprocessing.prepare(picture, patch, patch).pixels[0], torch.as_tensor(reference(picture))
        assert found.shape == expected.shape, (what, picture.size)
        # Relative to inputs of any scale; one level that is rounded to its neighbour is far beyond.
        bound = 2e-5 * expected.abs().amax().clamp(min=1)
        assert ((found - expected).abs() <= bound).all(), (what, picture.size)


def check_processors(kinds: tuple[str, ...], seeds: range) -> int:
    """How many of randomly set processors are read; the pixels of each are its own."""
    read = 0
    for kind in kinds:
        for seed in seeds:
            fields = processor_fields(Draw(f"{kind} {seed}"))
            try:
                processor = getattr(transformers, f"{kind}ImageProcessor")(**fields)
                call(processor, PICTURES[0])
            # Not everything that can be drawn is a processor that prepares pictures.
            except Exception:
                continue
            preprocessing = read_transform(processor)
            if preprocessing is not None:
                read += 1
                check_pixels(preprocessing, lambda picture, processor=processor: call(processor, picture), fields)
    return read


def test_processors_with_random_fields_are_read_exactly_or_called() -> None:
    seeds = range(100 * SEED, 100 * SEED + 12)
    assert check_processors(PLAIN, seeds) > len(PLAIN) * len(seeds) / 8
    assert check_processors(OTHERS, seeds[:3]) == 0


@pytest.mark.long
def test_processors_with_many_random_fields_are_read_exactly_or_called() -> None:
    check_processors(PLAIN, range(100 * SEED, 100 * SEED + 400))


@pytest.mark.long
def test_every_processor_of_transformers_is_read_exactly_or_called() -> None:
    names = [name.removesuffix("ImageProcessor") for name in dir(transformers) if name.endswith("ImageProcessor")]
    read = 0
    for name in names:
        try:
            processor = getattr(transformers, f"{name}ImageProcessor")()
        # It needs other packages, or something stated.
        except Exception:
            continue
        preprocessing = read_transform(processor)
        if preprocessing is not None and preprocessing.fit != "native":
            read += 1
            check_pixels(preprocessing, lambda picture, processor=processor: call(processor, picture), name)
    assert read > 8


def file_rule(processor: dict[str, Any], config: dict[str, Any] | None = None) -> PreprocessingRule | None:
    return find_rule(Beside(config or {}, processor), 3)


@pytest.mark.parametrize("count", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_a_file_of_vit_s_processor_has_its_pixels_or_is_refused(count: int, tmp_path: Path) -> None:
    read = 0
    for seed in range(count * SEED, count * SEED + count):
        draw = Draw(seed)
        fields = {**processor_fields(draw), "image_processor_type": draw.choice(["ViTImageProcessor"])}
        try:
            rule = file_rule(fields)
        except CheckpointError:
            continue
        read += 1
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(fields))
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
        assert rule is not None
        check_pixels(rule.preprocessing, lambda picture, processor=processor: call(processor, picture), fields)
    assert read > count / 8


def test_names_of_vit_s_processor_mean_its_defaults_and_others_are_for_their_package() -> None:
    for name in ("ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor", None):
        rule = file_rule({} if name is None else {"image_processor_type": name}, {"model_type": "vit"})
        assert rule is None if name is None else rule is not None and rule.preprocessing.interpolation == "bilinear"
    for kind in ("image_processor_type", "feature_extractor_type"):
        with pytest.raises(CheckpointError, match="'DeiTFeatureExtractor': expected ViT's own"):
            file_rule({kind: "DeiTFeatureExtractor"})


@pytest.mark.parametrize("seed", range(3))
def test_timm_s_pretrained_cfg_has_the_pixels_of_its_transform(seed: int) -> None:
    draw = Draw(100 * SEED + seed)
    cfg = drawn(
        0.7,
        draw,
        {
            "input_size": lambda: (3, side(draw), side(draw)),
            "crop_pct": lambda: draw.choice([0.875, 0.9, 0.95, 1.0, 0]),
            "crop_mode": lambda: draw.choice(["center", "squash", ""]),
            "interpolation": lambda: draw.choice(["bicubic", "bilinear", "nearest", "lanczos", ""]),
            "mean": lambda: tuple(draw.choice([[0.1, 0.2, 0.3], []])),
            "std": lambda: tuple(draw.choice([[0.4, 0.5, 0.6], []])),
        },
    )
    rule = timm_rule(cfg, "cfg", 3)
    transform = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=cfg), is_training=False)
    check_pixels(rule.preprocessing, transform, cfg)


def test_values_of_dinov3_are_not_rounded_to_levels() -> None:
    preprocessing = read_transform(transformers.DINOv3ViTImageProcessor(size={"height": 40, "width": 56}))
    assert preprocessing is not None
    mean, std = (torch.tensor(values)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    levels = (preprocessing.prepare(PICTURES[0], 1, 1).pixels[0] * std + mean) * 255
    assert (levels - levels.round()).abs().max() > 0.4
    # A picture has whole levels, and none beyond black and white.
    shown, _ = preprocessing.fit_image(PICTURES[0], 1, 1)
    assert np.abs(np.asarray(shown).transpose(2, 0, 1) - levels.clamp(0, 255).numpy()).max() <= 0.501


@pytest.mark.parametrize(("patch", "count"), [(8, 16), (4, 63), (5, 7)])
def test_naflex_has_the_most_patches_that_fit(patch: int, count: int) -> None:
    processor = transformers.Siglip2ImageProcessor(patch_size=patch, max_num_patches=count)
    preprocessing = read_transform(processor)
    assert preprocessing is not None

    def pixels(picture: Any) -> torch.Tensor:
        patches, (rows, columns) = (processor(picture)[name][0] for name in ("pixel_values", "spatial_shapes"))
        values = torch.as_tensor(np.asarray(patches))[: rows * columns].reshape(rows, columns, patch, patch, 3)
        return values.permute(4, 0, 2, 1, 3).reshape(3, patch * rows, patch * columns)

    check_pixels(preprocessing, pixels, count, patch)


# What a rule is at a network's size, and what it says of itself.

TIMM = {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9, "interpolation": "bicubic"}
VIT = {"image_processor_type": "ViTImageProcessor", "resample": 3, "size": 224, "image_mean": 0.5, "image_std": 0.5}


def test_the_size_of_the_network_wins_and_the_part_that_is_kept_stays() -> None:
    for rule in (timm_rule(TIMM, "cfg", 3), file_rule(VIT)):
        assert rule is not None
        (small, source), (large, other) = (
            rule.fit_network(*size, (14, 14), False) for size in ((224, 224), (518, 392))
        )
        assert {**large.to_dict(), "height": 224, "width": 224} == small.to_dict()
        assert source == rule.source and other.endswith(
            "; not at its 224×224 pixels but at the 518×392 that the network was trained at"
        )
        # SigLIP so400m/14 at 384 reads 27×14 = 378 of the 384 pixels, and some networks take any size.
        for size, any_size in (((230, 230), False), ((518, 518), True)):
            found, source = rule.fit_network(*size, (14, 14), any_size)
            assert (found.height, found.width, source) == (224, 224, rule.source)


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        (Beside({"pretrained_cfg": TIMM}), ()),
        (Beside({"pretrained_cfg": {**TIMM, "crop_pct": None}}), ("crop_pct",)),
        (Beside({"architecture": "vit_base_patch16_224"}), ("mean", "std", "crop_pct", "interpolation")),
        (Beside({}, VIT), ()),
        (Beside({}, {**VIT, "resample": None}), ("resample",)),
    ],
)
def test_what_only_the_default_of_a_package_states_is_named(files: Beside, missing: tuple[str, ...]) -> None:
    rule = find_rule(files, 3)
    assert rule is not None and rule.defaults == missing
    assert rule.assumption == (f"; only the package's default states {', '.join(missing)}" if missing else "")


def test_timm_s_file_comes_before_a_processor_and_its_older_flat_form_says_the_same() -> None:
    nested, flat = Beside({"architecture": "vit", "pretrained_cfg": TIMM}, VIT), Beside({"architecture": "vit", **TIMM})
    rules = [find_rule(files, 3) for files in (nested, flat)]
    assert [rule and rule.preprocessing for rule in rules] == [Preprocessing(224, 224, *HALVES, "crop", 0.9)] * 2
    # transformers' own files may have some of these names, too.
    assert find_rule(Beside({"model_type": "vit", "architecture": "vit", **TIMM}), 3) is None
    unstated = timm_rule({"mean": 0, "std": []}, "cfg", 3).preprocessing
    assert (unstated.mean, unstated.std) == IMAGENET


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"crop_mode": "border"}, "crop_mode 'center' or 'squash', and no label_offset; found .*'border'"),
        ({"label_offset": 1}, "no label_offset; found .*1$"),
        ({"input_size": [3, 224]}, r"expected input_size \[channels, height, width\].*\[3, 224\]"),
        ({"interpolation": "area"}, "interpolation 'area': expected 'nearest', "),
        ({"crop_pct": 1.1}, "crop_fraction = 1.1"),
        ({"crop_pct": math.inf}, "crop_fraction = inf"),
        ({"mean": [0.5]}, "1 means and 3 deviations"),
    ],
)
def test_what_timm_states_and_nothing_can_follow_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"^cfg: .*{message}"):
        timm_rule({**TIMM, **cfg}, "cfg", 3)
