"""Names of classes inside a checkpoint's own file: taken where they name exactly the classes, and never guessed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import vitviz
from tests.support.checkpoints import timm_state
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.metadata.class_names import find_class_names
from vitviz.weights.metadata.classes import read_labels
from vitviz.weights.metadata.labels import synset_names

FACTS: dict[str, Any] = {
    "heads": 3,
    "activation": "gelu",
    "norm_epsilon": 1e-6,
    "pooling": "cls",
    "normalisation": "half",
}
STATE = timm_state()
COUNT = len(STATE["head.bias"])
NAMES = tuple(f"leaf {letter}" for letter in "abcdefghijklmnopqrstuvwxyz"[:COUNT])
NUMBERED = tuple(f"class {index}" for index in range(COUNT))
INDICES = {name: index for index, name in enumerate(NAMES)}
SYNSETS = tuple(synset_names())[:COUNT]

GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "a list": ("class_names", {"class_names": list(NAMES)}),
    "a tuple": ("classes", {"classes": NAMES}),
    "ImageFolder's dict": ("class_to_idx", {"class_to_idx": dict(reversed(INDICES.items()))}),
    "numbers to names": ("idx_to_class", {"idx_to_class": dict(enumerate(NAMES))}),
    "numbers as texts": ("id2label", {"id2label": {str(index): name for name, index in INDICES.items()}}),
    "names to numbers": ("label2id", {"label2id": INDICES}),
    "in a program's arguments": ("args.label_names", {"args": argparse.Namespace(lr=0.1, label_names=list(NAMES))}),
    "in hyper-parameters": ("hyper_parameters.labels", {"hyper_parameters": {"labels": list(NAMES), "classes": COUNT}}),
    "in a configuration": ("config.classes", {"config": {"classes": list(NAMES)}}),
    "as OpenMMLab does": ("meta.dataset_meta.classes", {"meta": {"dataset_meta": {"classes": NAMES}}}),
    "twice alike": ("class_names", {"class_names": list(NAMES), "hparams": {"class_to_idx": INDICES}}),
    "beside placeholders": ("classes", {"classes": NAMES, "id2label": {i: f"LABEL_{i}" for i in range(COUNT)}}),
    "beside other things": ("classes", {"classes": NAMES, "labels": [3, 1, 2], "args": {"classes": None}}),
}
BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "too few": (f"class_names of the file has {COUNT - 1} names", {"class_names": NAMES[1:]}),
    "too many": (f"classes of the file has {COUNT + 1} names", {"classes": [*NAMES, "other"]}),
    "a gap": ("does not name its classes from 0 on", {"class_to_idx": {**INDICES, NAMES[-1]: COUNT}}),
    "from 1 on": ("does not name its classes from 0 on", {"idx_to_class": dict(enumerate(NAMES, 1))}),
    "one number twice": ("does not name its classes from 0 on", {"class_to_idx": {**INDICES, "other": 0}}),
    "keys that are no numbers": ("does not name its classes from 0 on", {"id2label": {name: name for name in NAMES}}),
    "no texts among them": ("does not name its classes from 0 on", {"class_names": [*NAMES[1:], 3]}),
    "an empty one": ("does not name its classes from 0 on", {"class_names": [*NAMES[1:], " "]}),
    "two that differ": (
        "class_names of the file and args.classes of the file differ",
        {"class_names": NAMES, "args": {"classes": NAMES[::-1]}},
    ),
    "one that fits and one that does not": (
        f"labels of the file has {COUNT - 1} names",
        {"class_names": NAMES, "labels": NAMES[1:]},
    ),
}


def write(folder: Path, entries: dict[str, Any]) -> Path:
    torch.save({"epoch": 12, "model": STATE, **entries}, folder / "leaves.pth")
    return folder / "leaves.pth"


@pytest.mark.parametrize("case", GOOD)
def test_names_of_exactly_the_classes_are_taken(tmp_path: Path, case: str) -> None:
    path, entries = GOOD[case]
    model = vitviz.load(write(tmp_path, entries), **FACTS)
    assert model.labels == NAMES
    assert model.card["labels"] == f"{COUNT} ({path} of the file)"
    assert not [text for text in model.assumptions if "class" in text]


@pytest.mark.parametrize("case", BAD)
def test_other_names_are_not_taken_and_one_line_says_why(tmp_path: Path, case: str) -> None:
    reason, entries = BAD[case]
    model = vitviz.load(write(tmp_path, entries), **FACTS)
    assert model.labels == NUMBERED
    (said,) = (text for text in model.assumptions if text.startswith("classes numbered: "))
    assert reason in said and said.endswith(f", where the classifier has {COUNT} classes")


def test_synsets_are_named_by_their_lemmas(tmp_path: Path) -> None:
    labels = vitviz.load(write(tmp_path, {"class_names": SYNSETS}), **FACTS).labels
    assert labels == tuple(synset_names()[synset] for synset in SYNSETS)


def test_names_beside_a_file_count_unless_those_in_it_differ() -> None:
    config = {"label_names": list(SYNSETS)}
    lemmas = tuple(synset_names()[synset] for synset in SYNSETS)
    assert read_labels(config, COUNT, {"classes": SYNSETS}) == (lemmas, "label_names in config.json", False)
    labels, source, is_assumed = read_labels(config, COUNT, {"classes": SYNSETS[::-1]})
    assert labels == NUMBERED and is_assumed
    assert source.startswith("numbered: label_names in config.json and classes of the file differ, where")


def test_names_in_the_header_of_a_safetensors_file_are_taken(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "leaves.safetensors", {"class_names": json.dumps(NAMES), "classes": "[", "labels": "x"})
    assert vitviz.load(tmp_path / "leaves.safetensors", **FACTS).labels == NAMES


def test_the_user_s_names_count_alone(tmp_path: Path) -> None:
    path, own = write(tmp_path, {"class_names": NAMES}), [f"mine {index}" for index in range(COUNT)]
    model = vitviz.load(path, labels=own, **FACTS)
    assert model.labels == tuple(own) and model.card["labels"] == f"{COUNT} (stated by the user)"
    assert vitviz.load(path, labels=dict(enumerate(own)), **FACTS).labels == tuple(own)
    with pytest.raises(CheckpointError, match=f"labels: 1 names; expected one for each of the model's {COUNT} classes"):
        vitviz.load(path, labels=["mine"], **FACTS)


def test_classes_may_have_the_same_name(tmp_path: Path) -> None:
    names = (*NAMES[1:], NAMES[1])
    assert vitviz.load(write(tmp_path, {"class_names": names}), **FACTS).labels == names


@pytest.mark.parametrize("value", [None, 5, "cat", [], {}, [1, 2], {"train": ["a"]}, torch.ones(2)])
def test_entries_without_names_are_none(value: object) -> None:
    assert find_class_names({"classes": value, "args": value, "meta": value}) == {}
