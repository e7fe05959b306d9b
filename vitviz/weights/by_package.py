"""Checkpoints that a package opens: its model is watched."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitviz.errors.kinds import CheckpointError, VitvizError
from vitviz.models.devices import usable_device
from vitviz.weights.conversion.canonical import Check
from vitviz.weights.formats.files import open_weights
from vitviz.weights.formats.names import weight_files
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.metadata.class_names import find_class_names
from vitviz.weights.model import Origin
from vitviz.weights.modules.as_model import load_module
from vitviz.weights.modules.preparation import OF_MODULES
from vitviz.weights.overrides import Stated
from vitviz.weights.packages import Built, build_by_name, build_from_folder
from vitviz.weights.read import Reading, describe, summarise

# What a user may state of a checkpoint that its package opens.
ALLOWED = ("normalisation", "image_size", "patch_size", "architecture", "probability", "labels")


def read_by_package(
    path: Path,
    stated: Stated,
    name: str | None = None,
    device: str | torch.device = "cpu",
    report: Callable[[Any], None] | None = None,
) -> Reading:
    """Open a folder by the package that its files name, or a file as the architecture of timm that the user names.

    Args:
        path: a folder, or a file of weights.
        stated: by the user; of facts, those in :data:`ALLOWED`.
        name: of the model; by default, the name of the file.
        device: where the model runs.
        report: as :func:`vitviz.weights.modules.load_module` takes it.

    Raises:
        CheckpointError: no package is named, it is not installed, or it cannot open the checkpoint.
        ConfigError: the package's model cannot be watched exactly.
        LimitError: its network takes more memory than is free.
    """
    file = open_weights(path, name)
    files, architecture = Beside.of_source(file.path, path)[0], stated.facts.get("architecture")
    refuse_own(stated)
    taken = weight_files(os.listdir(file.path.parent))[:1]
    if architecture is None and taken != [file.path.name]:
        raise CheckpointError(
            f"{file.name}: a package opens a whole folder, and would read {taken[0]} in this one; expected this file "
            "alone in a folder, with its configuration"
        )
    built = (
        build_from_folder(files, file.path.parent, name, stated.ignore)
        if architecture is None
        else build_by_name("timm", architecture, file)
    )
    names = find_class_names(file.entries or file.metadata)
    reading = watch(built, name or Path(file.name).stem, stated, device, report, names_in_file=names)
    return replace(reading, model=replace(reading.model, origin=Origin(file.path.parent)), files=files)


def read_by_name(
    package: str,
    source: str,
    stated: Stated,
    device: str | torch.device = "cpu",
    report: Callable[[Any], None] | None = None,
) -> Reading:
    """Open the model of a name of timm or open_clip, as :func:`read_by_package` opens a folder."""
    refuse_own(stated)
    return watch(build_by_name(package, source), f"{package}:{source}", stated, device, report)


def refuse_own(stated: Stated) -> None:
    """Refuse facts that a package states itself."""
    own = [*["family"] * (stated.family is not None), *(fact for fact in stated.facts if fact not in ALLOWED)]
    if own:
        raise CheckpointError(
            f"{', '.join(own)}: of vitviz's own network alone; of one that a package opens you can pass "
            f"{', '.join(ALLOWED)}"
        )


def watch(
    built: Built,
    name: str,
    stated: Stated,
    device: str | torch.device,
    report: Callable[[Any], None] | None,
    **facts: Any,
) -> Reading:
    """A package's model, watched, with the facts about it."""
    facts |= {fact: value for fact, value in stated.facts.items() if fact != "architecture"}
    options = {"preprocessing": built.preprocessing, "tokenizer": built.tokenizer, "report": report, "name": name}
    try:
        model = load_module(built.module.to(usable_device(device)), **options, **facts)
    except VitvizError as error:
        reason = str(error).removeprefix(f"{name}: ").replace(OF_MODULES, "").replace("load(module, ", "load(…, ")
        raise type(error)(f"{name}: opened by {built.title}: {reason}") from None
    card = {**model.card, "engine": f"{built.title}, watched"}
    assumptions = (
        *model.assumptions,
        *[f"preprocessing {summarise(model.preprocessing)}: no file beside it says size and crop"]
        * card["preprocessing"].startswith("normalisation "),
    )
    if card["preprocessing"] == "preprocessing":
        card["preprocessing"] = f"{type(built.preprocessing).__name__} beside it"
    checks = [
        Check("opened by", built.title, "the files beside it, or its name"),
        *describe(model.network.config, "its calls of attention", "the module"),
        Check("preprocessing", summarise(model.preprocessing), card["preprocessing"]),
        Check("labels", f"{len(model.labels):,}" if model.labels else "none", card["labels"]),
    ]
    return Reading(replace(model, card=card, assumptions=assumptions), tuple(checks), {})
