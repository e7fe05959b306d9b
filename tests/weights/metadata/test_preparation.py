"""How the files beside the weights say that a picture is prepared."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.support.sidecars import files_beside, read_preprocessing, source
from vitviz.errors.kinds import CheckpointError
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.normalisations import CLIP, HALVES, IMAGENET
from vitviz.weights.metadata.sidecars import Sidecars

DEFAULT = Preprocessing(8, 8, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "native")
VIT = {"image_processor_type": "ViTImageProcessor", "resample": 3, "size": {"height": 224, "width": 224}}
DINOV2 = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "crop_size": 224}
TIMM = {"input_size": [3, 224, 224], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "crop_pct": 0.9}
OPEN_CLIP = {
    "model_cfg": {"vision_cfg": {"image_size": 224}},
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "resize_mode": "squash"},
}


def preprocessing(sidecars: Sidecars, height: int = 224, width: int = 224) -> Preprocessing:
    return read_preprocessing(sidecars, height, width, DEFAULT, (8, 8))[0]


def test_timms_comes_before_transformers_and_that_before_open_clips() -> None:
    timm = {"architecture": "vit_base_patch16_224", "pretrained_cfg": TIMM}
    assert source(files_beside(timm, VIT, OPEN_CLIP)) == "timm's pretrained_cfg in config.json"
    assert source(files_beside({"model_type": "vit"}, VIT, OPEN_CLIP)) == "preprocessor_config.json"
    assert source(files_beside({}, {}, OPEN_CLIP)) == "open_clip_config.json"


def test_timms_older_flat_file_says_the_same() -> None:
    nested = preprocessing(files_beside({"pretrained_cfg": TIMM}))
    assert nested == Preprocessing(224, 224, *HALVES, "crop", 0.9, "bicubic")
    flat = files_beside({"architecture": "vit_base_patch16_224", "num_classes": 1000, **TIMM})
    assert preprocessing(flat) == nested
    assert source(flat) == "timm's config.json"
    # transformers' own files have some of these names too.
    assert source(files_beside({"model_type": "vit", "architecture": "vit", **TIMM})) == ""


WHOLE_TIMM = {**TIMM, "interpolation": "bicubic"}
WHOLE_VIT = {**VIT, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
WHOLE_CLIP = {**WHOLE_VIT, "image_processor_type": "CLIPImageProcessor", "crop_size": 224}
WHOLE_OPEN_CLIP = {**OPEN_CLIP["preprocess_cfg"], "interpolation": "bicubic"}


def without(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


@pytest.mark.parametrize(
    ("sidecars", "missing"),
    [
        (files_beside({"pretrained_cfg": WHOLE_TIMM}), ""),
        (files_beside({"pretrained_cfg": without(WHOLE_TIMM, "crop_pct")}), "crop_pct"),
        (files_beside({"architecture": "vit_base_patch16_224"}), "mean, std, crop_pct, interpolation"),
        (files_beside({}, WHOLE_VIT), ""),
        (files_beside({}, without(WHOLE_VIT, "resample", "image_mean")), "resample, image_mean"),
        (files_beside({}, {**without(WHOLE_VIT, "image_mean"), "do_normalize": False}), ""),
        (files_beside({}, WHOLE_CLIP), ""),
        (files_beside({}, without(WHOLE_CLIP, "crop_size")), "crop_size"),
        (files_beside({}, {}, {"preprocess_cfg": WHOLE_OPEN_CLIP}), ""),
        (files_beside({}, {}, {"model_cfg": {"vision_cfg": {"image_size": 224}}}), "mean, std, interpolation"),
    ],
)
def test_what_only_the_packages_default_states_is_named(sidecars: Sidecars, missing: str) -> None:
    *_, addition = read_preprocessing(sidecars, 224, 224, DEFAULT, (8, 8))
    assert addition == (f"; only the package's default states {missing}" if missing else "")


def test_zero_and_empty_count_as_not_stated_in_timm_and_open_clip() -> None:
    for nothing in (0, 0.0, []):
        timm = preprocessing(files_beside({"pretrained_cfg": {**TIMM, "mean": nothing, "std": nothing}}))
        assert (timm.mean, timm.std) == IMAGENET
        open_clip = preprocessing(files_beside({}, {}, {"preprocess_cfg": {"mean": nothing, "std": nothing}}))
        assert (open_clip.mean, open_clip.std) == CLIP
    assert preprocessing(files_beside({"pretrained_cfg": {**TIMM, "mean": [0, 0, 0]}})).mean == (0, 0, 0)


def test_a_processor_without_a_class_is_its_models() -> None:
    old = {"do_normalize": True, "do_resize": True, "size": 224}
    assert preprocessing(files_beside({"model_type": "vit"}, old)).interpolation == "bilinear"
    assert preprocessing(files_beside({"model_type": "clip"}, old)).fit == "crop"
    for config in ({}, {"model_type": "bert"}, {"model_type": ["vit"]}):
        with pytest.raises(CheckpointError, match=r"^preprocessor_config.json: no image_processor_type; expected 'ViT"):
            preprocessing(files_beside(config, old))


def test_one_number_is_that_of_every_channel() -> None:
    assert preprocessing(files_beside({}, {**VIT, "image_mean": 0.5, "image_std": 0.25})).std == (0.25,) * 3
    grey = Preprocessing(8, 8, (0.5,), (0.5,))
    with pytest.raises(CheckpointError, match="do_convert_rgb = True: expected false for a model of one channel"):
        read_preprocessing(files_beside({}, {**VIT, "image_mean": 0.13, "do_convert_rgb": True}), 28, 28, grey)
    found, *_ = read_preprocessing(files_beside({}, {**VIT, "image_mean": 0.13, "image_std": [0.3]}), 28, 28, grey)
    assert (found.mean, found.std) == ((0.13,), (0.3,))
    with pytest.raises(CheckpointError, match=r"image_std = \[0.3\]: expected 3 numbers"):
        preprocessing(files_beside({}, {**VIT, "image_std": [0.3]}))


@pytest.mark.parametrize(
    ("sidecars", "stated"),
    [
        (files_beside({"pretrained_cfg": TIMM}), "timm's pretrained_cfg in config.json"),
        (files_beside({}, DINOV2), "preprocessor_config.json"),
        (files_beside({}, {**VIT, "size": 224}), "preprocessor_config.json"),
        (files_beside({}, {}, OPEN_CLIP), "open_clip_config.json"),
    ],
    ids=["timm", "transformers' crop", "transformers' squash", "open_clip"],
)
def test_the_networks_size_wins_and_the_part_that_is_kept_stays(sidecars: Sidecars, stated: str) -> None:
    small, large = preprocessing(sidecars, 224, 224), preprocessing(sidecars, 518, 392)
    assert (large.height, large.width) == (518, 392)
    assert {**large.to_dict(), "height": 224, "width": 224} == small.to_dict()
    assert source(sidecars, 224, 224) == stated
    contradiction = "; not at its 224×224 pixels but at the 518×392 that the network was trained at"
    assert source(sidecars, 518, 392) == stated + contradiction


def test_a_size_of_the_networks_grid_is_kept_whatever_the_patch_divides() -> None:
    """SigLIP so400m/14 at 384 reads 27×14 = 378 of the 384 pixels."""
    siglip = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 384, "width": 384}}
    timm = {"pretrained_cfg": {**TIMM, "input_size": [3, 384, 384]}}
    clip = {"model_cfg": {"vision_cfg": {"image_size": 384}}}
    for sidecars in (files_beside({}, siglip), files_beside(timm), files_beside({}, {}, clip)):
        found, sentence, _ = read_preprocessing(sidecars, 378, 378, DEFAULT, (14, 14))
        assert (found.height, found.width) == (384, 384)
        assert ";" not in sentence
        found, sentence, _ = read_preprocessing(sidecars, 364, 378, DEFAULT, (14, 14))
        assert (found.height, found.width) == (364, 378)
        assert sentence.endswith("; not at its 384×384 pixels but at the 364×378 that the network was trained at")
        found, sentence, _ = read_preprocessing(sidecars, 224, 224, DEFAULT, (14, 14), any_size=True)
        assert (found.height, found.width) == (384, 384)
        assert ";" not in sentence
        found, *_ = read_preprocessing(sidecars, 800, 800, DEFAULT, (400, 400), any_size=True)
        assert (found.height, found.width) == (800, 800), "not one whole patch"


@pytest.mark.parametrize(
    ("count", "grid"), [(256, (16, 16)), (1024, (32, 32)), (300, (15, 20)), (7, (1, 7)), (1, (1, 1))]
)
def test_naflex_has_the_number_of_patches_that_its_file_states(count: int, grid: tuple[int, int]) -> None:
    values = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": count, "patch_size": 8}
    sidecars = files_beside({}, values)
    found, sentence, _ = read_preprocessing(sidecars, 128, 128, DEFAULT, (8, 8))
    naflex = {"rounding": "transformers", "backend": "torchvision"}
    assert found == Preprocessing(grid[0] * 8, grid[1] * 8, *HALVES, "native", 1.0, "bilinear", **naflex)
    assert sentence == "preprocessor_config.json"
    with pytest.raises(CheckpointError, match=r"patch_size = 8: expected that of the network, 16×16$"):
        read_preprocessing(sidecars, 256, 256, DEFAULT, (16, 16))


BOX = r"resample = 4: expected one of 0 \(nearest\), .*2 \(bilinear\), 3 \(bicubic\)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"image_processor_type": "DINOv3ViTImageProcessor", "do_rescale": False},
            "do_rescale = False: expected true, where do_normalize is",
        ),
        ({"do_resize": False}, "do_resize = False: expected true: vitviz does not make inputs of every picture's own"),
        ({"do_pad": True}, "do_pad = True: expected false: vitviz does not pad"),
        ({"do_normalize": "yes"}, "do_normalize = 'yes': expected true or false"),
        ({"do_center_crop": 1}, "do_center_crop = 1: expected true or false"),
        ({"rescale_factor": 0}, "rescale_factor = 0: expected a number above 0"),
        ({"rescale_factor": 10**400}, "rescale_factor = 10+.*: expected a number above 0"),
        ({"rescale_factor": 2, "do_normalize": False}, "rescale_factor = 2: expected a number with a decimal point"),
        ({"resample": 4}, BOX),
        ({"resample": 5}, "resample = 5: expected one of 0"),
        ({"resample": True}, "resample = True: expected one of 0"),
        ({"resample": "bicubic"}, "resample = 'bicubic': expected one of 0"),
        ({"size": {"longest_edge": 224}}, r"size = {'longest_edge': 224}: expected {'height', 'width'}, {'shortest_ed"),
        ({"size": {"shortest_edge": 224, "longest_edge": 300}}, "size = .*longest_edge.*: expected"),
        ({"size": {"max_height": 224, "max_width": 224}}, "size = .*: expected"),
        ({"size": {"height": 224}}, "size = {'height': 224}: expected"),
        ({"size": {"height": 224, "width": "224"}}, "size = .*: expected"),
        ({"size": {"height": 0, "width": 224}}, "size = .*: expected"),
        ({"size": {}}, "size = {}: expected"),
        ({"size": [224, 224, 3]}, r"size = \[224, 224, 3\]: expected"),
        ({"size": 10**400}, "size = 10+.*: expected"),
        ({"size": {"shortest_edge": 224}}, "do_center_crop = 'nothing': expected true, where size is a shortest_edge"),
        ({"size": {"shortest_edge": 200}, "do_center_crop": True, "crop_size": 224}, "crop_size = 224: .*at most 200"),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 260}},
            r"crop_size = {'height': 224, 'width': 260}: expected a height and width of at most 256 pixels",
        ),
        (
            {"size": 256, "do_center_crop": True, "crop_size": {"height": 224, "width": 200}},
            "crop_size = .*: expected a height and width, the same part of size's 256×256 pixels",
        ),
        ({"size": 200, "do_center_crop": True}, "crop_size = 'nothing': expected {'height', 'width'}, "),
        ({"size": 256, "do_center_crop": True, "crop_size": {"shortest_edge": 224}}, "crop_size = .*: expected"),
        ({"image_processor_type": "CLIPImageProcessor", "use_square_size": 1}, "use_square_size = 1: expected true or"),
        ({"image_mean": [0.5, 0.5]}, r"image_mean = \[0.5, 0.5\]: expected 3 numbers"),
        ({"image_mean": [0.5, 0.5, "0.5"]}, "image_mean = .*: expected 3 numbers"),
        ({"image_mean": [0.5, 0.5, math.nan]}, "image_mean = .*: expected 3 numbers"),
        ({"image_std": [0.5, 0.5, 10**400]}, "image_std = .*: expected 3 numbers"),
        ({"image_std": [0.5, 0.5, 0]}, "image_std = .*: expected numbers above 0"),
        (
            {"image_processor_type": "YolosImageProcessor"},
            "image_processor_type = 'YolosImageProcessor': expected 'ViT",
        ),
        ({"image_processor_type": ["ViTImageProcessor"]}, "image_processor_type = .*: expected 'ViTImageProcessor'"),
        ({"image_processor_type": "Siglip2ImageProcessor", "patch_size": 0}, "patch_size = 0: expected a whole number"),
        ({"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 2.5}, "max_num_patches = 2.5: expected"),
    ],
)
def test_what_a_processor_does_and_preprocessing_cannot_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"^preprocessor_config.json: {message}"):
        preprocessing(files_beside({}, {**VIT, **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crop_mode": "border"}, "crop_mode = 'border': expected 'center' or 'squash'"),
        ({"crop_mode": ["center"]}, "crop_mode = .*: expected 'center' or 'squash'"),
        ({"interpolation": "area"}, "interpolation = 'area': expected 'nearest', .* or 'hamming'"),
        ({"label_offset": 1}, "label_offset = 1: expected 0"),
        ({"crop_pct": 1.1}, r"crop_pct = 1.1: expected a number in \(0, 1\]"),
        ({"crop_pct": 0}, "crop_pct = 0: expected"),
        ({"crop_pct": math.inf}, "crop_pct = inf: expected"),
        ({"crop_pct": True}, "crop_pct = True: expected"),
        ({"input_size": 224}, r"input_size = 224: expected \[channels, height, width\]"),
        ({"input_size": [3, 224]}, r"input_size = \[3, 224\]: expected"),
        ({"input_size": [3, 224, -224]}, "input_size = .*: expected"),
        ({"mean": [0.5]}, r"mean = \[0.5\]: expected 3 numbers"),
        ({"std": {"r": 1}}, "std = .*: expected 3 numbers"),
    ],
)
def test_what_timm_does_and_preprocessing_cannot_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"^pretrained_cfg in config.json: {message}"):
        preprocessing(files_beside({"pretrained_cfg": {**TIMM, **change}}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preprocess_cfg": {"resize_mode": "longest"}}, "resize_mode = 'longest': expected 'shortest' or 'squash'"),
        ({"preprocess_cfg": {"interpolation": "nearest"}}, "interpolation = 'nearest': expected 'bicubic', 'bilinear'"),
        ({"preprocess_cfg": {"mean": [0.5]}}, r"mean = \[0.5\]: expected 3 numbers"),
        ({"preprocess_cfg": {"mode": "L"}}, "mode = 'L': expected 'RGB'"),
        ({"preprocess_cfg": []}, r"preprocess_cfg = \[\]: expected a JSON object"),
        ({"model_cfg": {"vision_cfg": "ViT"}}, "vision_cfg = 'ViT': expected a JSON object"),
        ({"model_cfg": {"vision_cfg": {"image_size": "224"}}}, "image_size = '224': expected one or two whole numbers"),
    ],
)
def test_what_open_clip_does_and_preprocessing_cannot_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"open_clip_config.json: {message}"):
        preprocessing(files_beside({}, {}, values))
