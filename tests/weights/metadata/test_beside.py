"""The JSON files beside a checkpoint: which are read, whose they are, and what they state of classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vitviz.errors.kinds import CheckpointError
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.metadata.classes import read_labels
from vitviz.weights.metadata.labels import label_names

VIT = {"image_processor_type": "ViTImageProcessor"}


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder / "model.safetensors"


def test_every_file_is_read_and_names_its_package(tmp_path: Path) -> None:
    assert Beside.beside(tmp_path / "model.safetensors") == Beside()
    weights = write(tmp_path, preprocessor_config=VIT, open_clip_config={"model_cfg": {}})
    assert Beside.beside(weights).package == "open_clip"
    for package, config in {
        "timm": {"architecture": "é"},
        "transformers": {"model_type": "vit", "architecture": "é"},
    }.items():
        write(tmp_path, config=config)
        files = Beside.beside(weights)
        assert (files.config, files.preprocessor, files.package) == (config, VIT, package)
        # open_clip's own file is beside its own weights alone.
        assert Beside.beside(tmp_path / "open_clip_model.safetensors").package == "open_clip"
    assert Beside({"num_classes": 3}).package is None


def test_an_image_processor_inside_the_file_of_all_processors_comes_first(tmp_path: Path) -> None:
    weights = write(tmp_path, preprocessor_config={"size": 1}, processor_config={"processor_class": "CLIPProcessor"})
    assert Beside.beside(weights).preprocessor == {"size": 1}
    write(tmp_path, processor_config={"image_processor": VIT})
    assert Beside.beside(weights).preprocessor == VIT


@pytest.mark.parametrize("name", ["config", "preprocessor_config", "processor_config", "open_clip_config"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read "),
        (b"{'size': 224}", "cannot be read "),
        (b"\x80\x02}q\x00.", "cannot be read "),
        (b'{"size": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "cannot be read "),
        (b"[224]", r"holds \[224\]; expected one JSON object"),
        (b"null", "holds None; expected one JSON object"),
    ],
    ids=["empty", "Python", "pickle", "nested", "list", "null"],
)
def test_a_file_that_is_no_json_object_is_refused_by_name(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"^{name}\.json {message}") as refused:
        Beside.beside(tmp_path / "model.safetensors")
    assert "\n" not in str(refused.value)


# Classes.

ANIMALS = ("cat", "dog", "hen")


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"id2label": {"2": "hen", "1": "dog", "0": "cat"}}, "id2label"),
        ({"label_names": list(ANIMALS)}, "label_names"),
        ({"label_names": {"0": "cat", "2": "hen", "1": "dog"}}, "label_names"),
        ({"architecture": "vit", "labels": list(ANIMALS)}, "labels"),
        ({"pretrained_cfg": {"label_names": list(ANIMALS)}}, "label_names"),
        ({"label_names": list(ANIMALS), "pretrained_cfg": {"label_names": ["a"]}}, "label_names"),
        ({"label_names": ["LABEL_0", "LABEL_1"], "id2label": {"0": "cat", "1": "dog", "2": "hen"}}, "id2label"),
    ],
)
def test_names_are_read_in_the_order_of_their_numbers(config: dict[str, Any], place: str) -> None:
    assert read_labels(config, 3) == (ANIMALS, f"{place} in config.json", False)


def test_numbers_of_synsets_are_read_as_their_lemmas() -> None:
    labels, *_ = read_labels({"id2label": {"0": "n02099601", "1": "n99999999", "2": "n01440764"}}, 3)
    assert labels == ("golden retriever", "n99999999", "tench, Tinca tinca")


@pytest.mark.parametrize(
    ("classes", "title"),
    [
        (1000, "1,000 classes without names: those of ImageNet-1k in the usual order"),
        (21843, "21,843 classes without names: those of ImageNet-21k in Google's order"),
    ],
)
def test_without_names_the_number_of_classes_tells_which_imagenet(classes: int, title: str) -> None:
    config = {"id2label": {str(index): f"LABEL_{index}" for index in range(classes)}}
    assert read_labels(config, classes) == (label_names(classes), title, True)


def test_other_numbers_of_classes_are_numbered() -> None:
    assert read_labels({}, 3) == (("class 0", "class 1", "class 2"), "3 classes without names: numbered", False)


def test_a_thousand_classes_with_names_are_not_imagenet() -> None:
    config = {"id2label": {str(index): f"bird {index}" for index in range(1000)}}
    labels, sentence, _ = read_labels(config, 1000)
    assert (labels[999], sentence) == ("bird 999", "id2label in config.json")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"id2label": {"0": "cat", "2": "hen"}}, "id2label in config.json does not name its classes from 0 on"),
        ({"id2label": {"0": "cat", "1": "dog", "2": "hen", "3": "ox"}}, "id2label in config.json has 4 names"),
        ({"id2label": {"1": "cat", "2": "dog", "3": "hen"}}, "id2label in config.json does not name"),
        ({"id2label": {"0": "cat", "1": "dog", "2": "hen", "-1": "ox"}}, "id2label in config.json does not name"),
        ({"id2label": {"zero": "cat"}}, "id2label in config.json does not name"),
        ({"id2label": {"0": "cat", "1": 7, "2": "hen"}}, "id2label in config.json does not name"),
        ({"label_names": ["cat", "dog"]}, "label_names in config.json has 2 names, where the classifier has 3"),
        ({"label_names": [*ANIMALS, "ox"]}, "label_names in config.json has 4 names"),
        ({"label_names": {"0": "cat", "7": "hen"}}, "label_names in config.json does not name"),
        ({"label_names": ["cat", None, "hen"]}, "label_names in config.json does not name"),
    ],
)
def test_names_of_other_classes_are_not_taken_and_one_line_says_why(config: dict[str, Any], reason: str) -> None:
    labels, source, is_assumed = read_labels(config, 3)
    assert labels == ("class 0", "class 1", "class 2") and is_assumed and source.startswith(f"numbered: {reason}")
