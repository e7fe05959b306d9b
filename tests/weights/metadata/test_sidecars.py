"""The JSON files beside a checkpoint: what is read from them, and what is refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.images.preprocessing import Preprocessing
from vitviz.weights.metadata.classes import read_labels
from vitviz.weights.metadata.labels import label_names
from vitviz.weights.metadata.preparation import CLIP, HALVES, IMAGENET, read_preprocessing
from vitviz.weights.metadata.sidecars import SIZE_LIMIT, Sidecars

FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")
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


def source(sidecars: Sidecars, height: int = 224, width: int = 224) -> str:
    return read_preprocessing(sidecars, height, width, DEFAULT, (8, 8))[1]


# Files.


def test_a_folder_without_any_file_has_nothing_to_say(tmp_path: Path) -> None:
    assert Sidecars.read(tmp_path) == Sidecars.read(tmp_path / "nowhere") == Sidecars()
    (tmp_path / "config.json").mkdir()
    assert Sidecars.read(str(tmp_path)) == Sidecars()


def test_every_file_is_read(tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json", "open_clip_config.json"):
        (tmp_path / name).write_text(json.dumps({"name": name, "Name": "é"}), encoding="utf-8")
    sidecars = Sidecars.read(tmp_path)
    assert sidecars.config == {"name": "config.json", "Name": "é"}
    assert sidecars.preprocessor["name"] == sidecars.preprocessor_file == "preprocessor_config.json"
    assert sidecars.open_clip["name"] == "open_clip_config.json"


def test_an_image_processor_inside_the_file_of_all_processors_comes_first(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(DINOV2))
    (tmp_path / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert Sidecars.read(tmp_path).preprocessor == DINOV2
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": VIT}))
    sidecars = Sidecars.read(tmp_path)
    assert sidecars.preprocessor == VIT
    assert source(sidecars) == "image_processor in processor_config.json"
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": "ViTImageProcessor"}))
    with pytest.raises(CheckpointError, match=r"processor_config.json: image_processor = .*: expected a JSON object"):
        Sidecars.read(tmp_path)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"{'size': 224}", "not JSON"),
        (b"\x80\x02}q\x00.", "not JSON"),
        (b'{"size": 1' + b"0" * 5000 + b"}", "not JSON"),
        (b"[224]", r"\[224\]: expected a JSON object"),
        (b"null", "None: expected a JSON object"),
        (b'{"size": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "nested too deeply"),
        (b" " * SIZE_LIMIT + b"{}", "over 8 MiB"),
    ],
    ids=["empty", "Python", "pickle", "number of 5,000 digits", "list", "null", "nested", "large"],
)
def test_a_file_that_is_no_small_json_object_is_refused_by_name(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"^{re.escape(name)}: {message}"):
        Sidecars.read(tmp_path)


# Preprocessing.


def test_without_files_it_is_the_familys_convention_at_the_networks_size() -> None:
    found, sentence = read_preprocessing(Sidecars(config={"model_type": "vit"}), 32, 48, DEFAULT)
    assert found == Preprocessing(32, 48, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "native")
    assert sentence.startswith("the family's convention")


def test_timms_comes_before_transformers_and_that_before_open_clips() -> None:
    timm = {"architecture": "vit_base_patch16_224", "pretrained_cfg": TIMM}
    assert source(Sidecars(timm, VIT, OPEN_CLIP)) == "timm's pretrained_cfg in config.json"
    assert source(Sidecars({"model_type": "vit"}, VIT, OPEN_CLIP)) == "preprocessor_config.json"
    assert source(Sidecars({}, {}, OPEN_CLIP)) == "open_clip_config.json"


def test_timms_older_flat_file_says_the_same() -> None:
    nested = preprocessing(Sidecars({"pretrained_cfg": TIMM}))
    assert nested == Preprocessing(224, 224, *HALVES, "crop", 0.9, "bicubic")
    flat = Sidecars({"architecture": "vit_base_patch16_224", "num_classes": 1000, **TIMM})
    assert preprocessing(flat) == nested
    assert source(flat) == "timm's config.json"
    # transformers' own files have some of these names too.
    assert source(Sidecars({"model_type": "vit", "architecture": "vit", **TIMM})).startswith("the family's convention")


def test_timms_squash_may_keep_a_part() -> None:
    found = preprocessing(Sidecars({"pretrained_cfg": {**TIMM, "crop_mode": "squash", "crop_pct": 0.95}}))
    assert (found.fit, found.squash_fraction, found.crop_fraction) == ("squash", 0.95, 1)


def test_null_is_as_good_as_nothing() -> None:
    found = preprocessing(Sidecars({"pretrained_cfg": dict.fromkeys(TIMM)}))
    assert found == Preprocessing(224, 224, *IMAGENET, "crop", 0.875, "bicubic")
    found = preprocessing(Sidecars({}, {**dict.fromkeys(VIT), "image_processor_type": "CLIPImageProcessor"}))
    assert found == Preprocessing(224, 224, *CLIP, "crop", 1.0, "bicubic", 1.0, "transformers", "torchvision")


def test_the_interpolation_random_is_bicubic_in_open_clip_and_nothing_in_timm() -> None:
    values = {**OPEN_CLIP, "preprocess_cfg": {"interpolation": "random"}}
    assert preprocessing(Sidecars({}, {}, values)).interpolation == "bicubic"
    with pytest.raises(CheckpointError, match=r"interpolation = 'random': expected 'nearest', .* 'box' or"):
        preprocessing(Sidecars({"pretrained_cfg": {**TIMM, "interpolation": "random"}}))


def test_open_clip_cuts_oblong_pictures_with_bicubic_whatever_its_file_says() -> None:
    for size, resize_mode, expected in (
        (224, "shortest", "bilinear"),
        ([224, 192], "squash", "bilinear"),
        ([224, 192], "shortest", "bicubic"),
    ):
        section = {"interpolation": "bilinear", "resize_mode": resize_mode}
        values = {"model_cfg": {"vision_cfg": {"image_size": size}}, "preprocess_cfg": section}
        assert preprocessing(Sidecars({}, {}, values), 224, 192).interpolation == expected


def test_zero_and_empty_count_as_not_stated_in_timm_and_open_clip() -> None:
    for nothing in (0, 0.0, []):
        timm = preprocessing(Sidecars({"pretrained_cfg": {**TIMM, "mean": nothing, "std": nothing}}))
        assert (timm.mean, timm.std) == IMAGENET
        open_clip = preprocessing(Sidecars({}, {}, {"preprocess_cfg": {"mean": nothing, "std": nothing}}))
        assert (open_clip.mean, open_clip.std) == CLIP
    assert preprocessing(Sidecars({"pretrained_cfg": {**TIMM, "mean": [0, 0, 0]}})).mean == (0, 0, 0)


def test_the_part_that_transformers_keeps_is_its_crop_of_its_size() -> None:
    found = preprocessing(Sidecars({}, DINOV2))
    assert (found.fit, found.crop_fraction, found.rounding) == ("crop", 0.875, "transformers")
    deit = {"feature_extractor_type": "DeiTFeatureExtractor", "size": 256, "crop_size": 224, "do_center_crop": True}
    found = preprocessing(Sidecars({}, deit))
    assert (found.fit, found.squash_fraction) == ("squash", 0.875)


def test_a_size_of_one_number_is_a_square_or_a_shorter_side_as_its_class_has_it() -> None:
    vit = preprocessing(Sidecars({}, {"feature_extractor_type": "ViTFeatureExtractor", "size": 224}))
    assert vit.fit == "squash"
    clip = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": 224}
    assert preprocessing(Sidecars({}, clip)).fit == "crop"
    assert preprocessing(Sidecars({}, {**clip, "default_to_square": True})).fit == "squash"


def test_a_processor_without_a_class_is_its_models() -> None:
    old = {"do_normalize": True, "do_resize": True, "size": 224}
    assert preprocessing(Sidecars({"model_type": "vit"}, old)).interpolation == "bilinear"
    assert preprocessing(Sidecars({"model_type": "clip"}, old)).fit == "crop"
    for config in ({}, {"model_type": "bert"}, {"model_type": ["vit"]}):
        with pytest.raises(CheckpointError, match=r"^preprocessor_config.json: no image_processor_type; expected 'ViT"):
            preprocessing(Sidecars(config, old))


def test_without_normalising_values_stay_between_0_and_1() -> None:
    found = preprocessing(Sidecars({}, {**VIT, "do_normalize": False, "image_mean": [0.5] * 3}))
    assert (found.mean, found.std) == ((0, 0, 0), (1, 1, 1))


@pytest.mark.parametrize(
    ("change", "white", "black"),
    [
        ({"do_normalize": False, "do_rescale": False}, 255, 0),
        ({"do_normalize": False, "rescale_factor": 1 / 127.5}, 2, 0),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1, 1, 1], "image_std": 0.5}, 2, -2),
        ({"do_rescale": False, "rescale_factor": 7, "image_mean": 127.5, "image_std": 0.5}, 255, -255),
    ],
)
def test_levels_rescaled_in_another_way_are_another_mean_and_deviation(
    change: dict[str, Any], white: float, black: float
) -> None:
    found = preprocessing(Sidecars({}, {**VIT, **change}))
    extremes = found.standardise(torch.tensor([0.0, 1.0]).expand(3, 1, 2))
    assert torch.allclose(extremes, torch.tensor([black, white]).float().expand(3, 1, 2))


def test_one_number_is_that_of_every_channel() -> None:
    assert preprocessing(Sidecars({}, {**VIT, "image_mean": 0.5, "image_std": 0.25})).std == (0.25,) * 3
    grey = Preprocessing(8, 8, (0.5,), (0.5,))
    with pytest.raises(CheckpointError, match="do_convert_rgb = True: expected false for a model of one channel"):
        read_preprocessing(Sidecars({}, {**VIT, "image_mean": 0.13, "do_convert_rgb": True}), 28, 28, grey)
    found, _ = read_preprocessing(Sidecars({}, {**VIT, "image_mean": 0.13, "image_std": [0.3]}), 28, 28, grey)
    assert (found.mean, found.std) == ((0.13,), (0.3,))
    with pytest.raises(CheckpointError, match=r"image_std = \[0.3\]: expected 3 numbers"):
        preprocessing(Sidecars({}, {**VIT, "image_std": [0.3]}))


@pytest.mark.parametrize(
    ("sidecars", "stated"),
    [
        (Sidecars({"pretrained_cfg": TIMM}), "timm's pretrained_cfg in config.json"),
        (Sidecars({}, DINOV2), "preprocessor_config.json"),
        (Sidecars({}, {**VIT, "size": 224}), "preprocessor_config.json"),
        (Sidecars({}, {}, OPEN_CLIP), "open_clip_config.json"),
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
    for sidecars in (Sidecars({}, siglip), Sidecars(timm), Sidecars({}, {}, clip)):
        found, sentence = read_preprocessing(sidecars, 378, 378, DEFAULT, (14, 14))
        assert (found.height, found.width) == (384, 384)
        assert ";" not in sentence
        found, sentence = read_preprocessing(sidecars, 364, 378, DEFAULT, (14, 14))
        assert (found.height, found.width) == (364, 378)
        assert sentence.endswith("; not at its 384×384 pixels but at the 364×378 that the network was trained at")
        found, sentence = read_preprocessing(sidecars, 224, 224, DEFAULT, (14, 14), any_size=True)
        assert (found.height, found.width) == (384, 384)
        assert ";" not in sentence
        found, _ = read_preprocessing(sidecars, 800, 800, DEFAULT, (400, 400), any_size=True)
        assert (found.height, found.width) == (800, 800), "not one whole patch"


@pytest.mark.parametrize(
    ("count", "grid"), [(256, (16, 16)), (1024, (32, 32)), (300, (15, 20)), (7, (1, 7)), (1, (1, 1))]
)
def test_naflex_has_the_number_of_patches_that_its_file_states(count: int, grid: tuple[int, int]) -> None:
    values = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": count, "patch_size": 8}
    sidecars = Sidecars({}, values)
    found, sentence = read_preprocessing(sidecars, 128, 128, DEFAULT, (8, 8))
    naflex = {"rounding": "transformers", "backend": "torchvision"}
    assert found == Preprocessing(grid[0] * 8, grid[1] * 8, *HALVES, "native", 1.0, "bilinear", **naflex)
    assert sentence == "preprocessor_config.json"
    with pytest.raises(CheckpointError, match=r"patch_size = 8: expected that of the network, 16×16$"):
        read_preprocessing(sidecars, 256, 256, DEFAULT, (16, 16))


def test_a_size_that_open_clip_does_not_state_contradicts_nothing() -> None:
    for values in ({"preprocess_cfg": {}}, {"model_cfg": {"vision_cfg": {}}}, {"model_cfg": {"text_cfg": {}}}):
        assert source(Sidecars({}, {}, values), 100, 200) == "open_clip_config.json"
    oblong = {"model_cfg": {"vision_cfg": {"image_size": [100, 200]}}}
    assert source(Sidecars({}, {}, oblong), 100, 200) == "open_clip_config.json"


BOX = r"resample = 4: expected one of 0 \(nearest\), 1 \(lanczos\), 2 \(bilinear\), 3 \(bicubic\)"


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
        ({"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True}, "do_pan_and_scan = True: expect"),
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
        preprocessing(Sidecars({}, {**VIT, **change}))


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
        preprocessing(Sidecars({"pretrained_cfg": {**TIMM, **change}}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preprocess_cfg": {"resize_mode": "longest"}}, "resize_mode = 'longest': expected 'shortest' or 'squash'"),
        ({"preprocess_cfg": {"interpolation": "nearest"}}, "interpolation = 'nearest': expected 'bicubic', 'bilinear'"),
        ({"preprocess_cfg": {"mean": [0.5]}}, r"mean = \[0.5\]: expected 3 numbers"),
        ({"preprocess_cfg": {"mode": "L"}}, "mode = 'L': expected 'RGB'"),
        ({"preprocess_cfg": []}, r"preprocess_cfg = \[\]: expected a JSON object"),
        ({"model_cfg": {"vision_cfg": "ViT"}}, "vision_cfg = 'ViT': expected a JSON object"),
        ({"model_cfg": {"vision_cfg": {"image_size": "224"}}}, "image_size = '224': expected a whole number or"),
    ],
)
def test_what_open_clip_does_and_preprocessing_cannot_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"open_clip_config.json: {message}"):
        preprocessing(Sidecars({}, {}, values))


def test_sections_that_are_no_objects_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"^config.json: pretrained_cfg = 'vit': expected a JSON object"):
        preprocessing(Sidecars({"pretrained_cfg": "vit"}))


# Labels.

ANIMALS = ("cat", "dog", "hen")


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"id2label": {"0": "cat", "1": "dog", "2": "hen"}}, "id2label in config.json"),
        ({"id2label": {"2": "hen", "1": "dog", "0": "cat"}}, "id2label in config.json"),
        ({"label_names": list(ANIMALS)}, "label_names in config.json"),
        ({"label_names": {"0": "cat", "2": "hen", "1": "dog"}}, "label_names in config.json"),
        ({"architecture": "vit", "labels": list(ANIMALS)}, "labels in config.json"),
        ({"pretrained_cfg": {"label_names": list(ANIMALS)}}, "label_names in pretrained_cfg in config.json"),
        ({"label_names": list(ANIMALS), "pretrained_cfg": {"label_names": ["a"]}}, "label_names in config.json"),
        ({"label_names": ["LABEL_0", "LABEL_1"], "id2label": {"0": "cat", "1": "dog", "2": "hen"}}, "id2label in"),
    ],
)
def test_names_are_read_in_the_order_of_their_numbers(config: dict[str, Any], where: str) -> None:
    labels, sentence, _ = read_labels(Sidecars(config), 3)
    assert labels == ANIMALS
    assert sentence.startswith(where)


def test_timms_descriptions_are_preferred_to_its_names() -> None:
    config = {"label_names": ["a", "b"], "label_descriptions": {"a": "ant", "b": "bee, Apis"}}
    assert read_labels(Sidecars(config), 2)[0] == ("ant", "bee, Apis")
    assert read_labels(Sidecars({"pretrained_cfg": config}), 2)[0] == ("ant", "bee, Apis")
    assert read_labels(Sidecars({**config, "label_descriptions": {"b": "bee"}}), 2)[0] == ("a", "bee")


def test_a_dictionary_of_timms_may_leave_classes_without_a_name() -> None:
    labels, *_ = read_labels(Sidecars({"label_names": {"0": "cat", "2": "hen"}}), 4)
    assert labels == ("cat", "class 1", "hen", "class 3")


def test_numbers_of_synsets_are_read_as_their_lemmas() -> None:
    config = {"id2label": {"0": "n02099601", "1": "n99999999", "2": "n01440764"}}
    labels, *_ = read_labels(Sidecars(config), 3)
    assert labels == ("golden retriever", "n99999999", "tench, Tinca tinca")
    described = {"label_names": ["n02099601"], "label_descriptions": {"n02099601": "retriever"}}
    assert read_labels(Sidecars(described), 1)[0] == ("retriever",)


@pytest.mark.parametrize("count", [2, 3, 1000])
def test_placeholders_of_transformers_are_no_names(count: int) -> None:
    config = {"id2label": {str(index): f"LABEL_{index}" for index in range(count)}}
    labels, sentence, _ = read_labels(Sidecars(config), 3)
    assert labels == ("class 0", "class 1", "class 2")
    assert sentence == "3 classes without names: numbered"


@pytest.mark.parametrize(
    ("classes", "title"),
    [
        (1000, "1,000 classes without names: those of ImageNet-1k in the usual order"),
        (21843, "21,843 classes without names: those of ImageNet-21k in Google's order"),
        (21841, "21,841 classes without names: those of ImageNet-21k of fall 2011"),
        (11821, "11,821 classes without names: those of ImageNet-12k"),
    ],
)
def test_without_names_the_number_of_classes_tells_which_imagenet(classes: int, title: str) -> None:
    assert read_labels(Sidecars({"num_classes": classes, "id2label": {}}), classes) == (
        label_names(classes),
        title,
        True,
    )


def test_a_thousand_classes_with_names_are_not_imagenet() -> None:
    config = {"id2label": {str(index): f"bird {index}" for index in range(1000)}}
    labels, sentence, _ = read_labels(Sidecars(config), 1000)
    assert labels[999] == "bird 999"
    assert sentence == "id2label in config.json"


def test_no_class_and_one_class() -> None:
    assert read_labels(Sidecars({"id2label": {"0": "cat"}}), 0) == ((), "no classifier", False)
    assert read_labels(Sidecars(), 1) == (("class 0",), "1 class without names: numbered", False)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"id2label": {"0": "cat", "2": "hen"}},
            "id2label has 2 names, 1 is missing; expected those of the classes 0 to 2",
        ),
        ({"id2label": {"0": "cat", "1": "dog", "2": "hen", "3": "ox"}}, "id2label has 4 names, 3 is surplus"),
        ({"id2label": {"1": "cat", "2": "dog", "3": "hen"}}, "id2label has 3 names, 0 is missing"),
        ({"id2label": {"zero": "cat"}}, "id2label = .*: expected texts by the number of their class"),
        ({"id2label": {"-1": "cat"}}, "id2label = .*: expected texts by the number of their class"),
        ({"id2label": {"9" * 5000: "cat"}}, "id2label = .*: expected texts by the number of their class"),
        ({"id2label": {"0": 7}}, "id2label = {'0': 7}: expected a text for every class"),
        ({"id2label": "cat"}, "id2label = 'cat': expected a text for every class"),
        ({"label_names": ["cat", "dog"]}, "label_names has 2 names, 2 is missing"),
        ({"label_names": [*ANIMALS, "ox"]}, "label_names has 4 names, 3 is surplus"),
        ({"label_names": {"0": "cat", "7": "hen"}}, "label_names has 2 names, 7 is surplus"),
        ({"label_names": ["cat", None, "hen"]}, r"label_names = \['cat', None, 'hen'\]: expected a text"),
        ({"label_names": list(ANIMALS), "label_descriptions": ["a"]}, "label_descriptions: expected a text"),
        ({"label_names": list(ANIMALS), "label_descriptions": {"cat": 1}}, "label_descriptions: expected a text"),
    ],
)
def test_names_of_other_classes_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=f"^config.json: {message}"):
        read_labels(Sidecars(config), 3)
