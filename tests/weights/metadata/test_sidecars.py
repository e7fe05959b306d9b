"""The JSON files beside a checkpoint: what is read from them, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.sidecars import files_beside, source
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.metadata.classes import read_labels
from vitviz.weights.metadata.labels import label_names
from vitviz.weights.metadata.sidecars import SIZE_LIMIT, Sidecars

FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "open_clip_config.json")
VIT = {"image_processor_type": "ViTImageProcessor", "resample": 3, "size": {"height": 224, "width": 224}}
DINOV2 = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "crop_size": 224}


# Files.


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
    labels, sentence, _ = read_labels(files_beside(config), 3)
    assert labels == ANIMALS
    assert sentence.startswith(where)


def test_numbers_of_synsets_are_read_as_their_lemmas() -> None:
    config = {"id2label": {"0": "n02099601", "1": "n99999999", "2": "n01440764"}}
    labels, *_ = read_labels(files_beside(config), 3)
    assert labels == ("golden retriever", "n99999999", "tench, Tinca tinca")
    described = {"label_names": ["n02099601"], "label_descriptions": {"n02099601": "retriever"}}
    assert read_labels(files_beside(described), 1)[0] == ("retriever",)


@pytest.mark.parametrize("count", [2, 3, 1000])
def test_placeholders_of_transformers_are_no_names(count: int) -> None:
    config = {"id2label": {str(index): f"LABEL_{index}" for index in range(count)}}
    labels, sentence, _ = read_labels(files_beside(config), 3)
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
    assert read_labels(files_beside({"num_classes": classes, "id2label": {}}), classes) == (
        label_names(classes),
        title,
        True,
    )


def test_a_thousand_classes_with_names_are_not_imagenet() -> None:
    config = {"id2label": {str(index): f"bird {index}" for index in range(1000)}}
    labels, sentence, _ = read_labels(files_beside(config), 1000)
    assert labels[999] == "bird 999"
    assert sentence == "id2label in config.json"


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
        read_labels(files_beside(config), 3)
