"""Checkpoints that vitviz has no network for: their package opens them, and the model is watched.

The package reads a temporary folder with a checked configuration and, as safetensors, the weights that vitviz has
checked. So it finds no code, no pickle and no other checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from vitviz.errors.kinds import CheckpointError, VitvizError
from vitviz.images.preprocessing import why_not_channels
from vitviz.models.devices import usable_device
from vitviz.weights.conversion.canonical import Check
from vitviz.weights.formats.files import open_weights
from vitviz.weights.formats.names import INDEX_SUFFIX
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.class_names import find_class_names
from vitviz.weights.metadata.preparation import find_rule
from vitviz.weights.metadata.rules import PreprocessingRule
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars
from vitviz.weights.model import Origin
from vitviz.weights.modules.load import load_module
from vitviz.weights.modules.sizes import find_channels
from vitviz.weights.overrides import Stated, check_bytes
from vitviz.weights.packages import find_package, timm
from vitviz.weights.packages.reference import Package, ReferenceModel, import_package, package_errors
from vitviz.weights.read import Reading, describe, summarise

# Overrides for a checkpoint that its package opens.
ALLOWED_OVERRIDES = ("normalisation", "image_size", "patch_size", "architecture", "probability", "labels")
SAFE_KINDS = ("safetensors", "sharded safetensors")


def read_by_package(
    path: Path,
    stated: Stated,
    name: str | None = None,
    device: str | torch.device = "cpu",
    report: Callable[[Any], None] | None = None,
) -> Reading:
    """Read a checkpoint with the package that the files beside it name, and watch the model.

    Args:
        path: a file with a usual name, or a folder; with ``architecture``, any file.
        stated: by the user; of facts, those in :data:`ALLOWED_OVERRIDES`.
        name: of the model; by default, the name of the file.
        device: where the model runs.
        report: as :func:`vitviz.weights.modules.load_module` takes it.

    Raises:
        CheckpointError: no package is named, or it is not installed; the weights are not safetensors, or the
            configuration asks for more than they hold; or the package cannot open it.
        ConfigError: the package's model cannot be watched exactly.
        LimitError: its network takes more memory than is allowed or free.
    """
    facts, ignore = dict(stated.facts), stated.ignore
    of_own_network = [
        *["family"] * (stated.family is not None),
        *(fact for fact in facts if fact not in ALLOWED_OVERRIDES),
    ]
    if of_own_network:
        raise CheckpointError(
            f"{', '.join(of_own_network)}: of vitviz's own network alone; of one that a package opens you can pass "
            f"{', '.join(ALLOWED_OVERRIDES)}"
        )
    file = open_weights(path)
    beside, left_out = Sidecars.of_source(file.path, path)[0].without(ignore)
    sidecars, architecture = beside, facts.pop("architecture", None)
    if architecture is not None:
        config = {**beside.config, "architecture": architecture}
        sidecars = replace(beside, config=Settings(config, beside.config.place))
    package = timm.PACKAGE if architecture is not None else find_package(sidecars)
    ignore = tuple(pattern for pattern in ignore if pattern not in left_out)
    if package is None:
        raise CheckpointError(f"{file.name}: no file beside it names a package that could open it")
    import_package(package, f"{file.name}: opening it by its package")
    if file.kind not in SAFE_KINDS:
        raise CheckpointError(
            f"{file.name}: {file.kind}, which a package is not given to read; expected its weights as safetensors"
        )
    reference = _open_in_folder(package, file, sidecars, ignore, stated.max_bytes)
    module = reference.module.to(usable_device(device))
    try:
        rule = _find_rule(beside, module, facts.get("normalisation"), architecture)
        facts |= {
            "name": name or Path(file.name).stem,
            "names_in_file": find_class_names(file.entries or file.metadata),
        }
        model = load_module(module, preprocessing=rule, report=report, **facts)
    except VitvizError as error:
        raise type(error)(f"{file.name}: opened by {reference.title}: {error}") from None
    card = {**model.card, "engine": f"{reference.title}, watched"}
    model = replace(model, card=card, origin=Origin(file.path.parent))
    checks = [
        Check("opened by", reference.title, str(package.find_mention(sidecars))),
        *describe(model.network.config, "its calls of attention", "the module"),
        Check("preprocessing", summarise(model.preprocessing), card["preprocessing"]),
        Check("labels", f"{len(model.labels):,}" if model.labels else "none", card["labels"]),
    ]
    return Reading(model, tuple(checks), {}, sidecars)


def names_package(path: Path, stated: Stated) -> bool:
    """Whether the user, by an architecture of timm, or the files beside a checkpoint name one of :data:`PACKAGES`."""
    if "architecture" in stated.facts:
        return True
    return find_package(Sidecars.of_source(open_weights(path).path, path)[0]) is not None


def _open_in_folder(
    package: Package, file: WeightFile, sidecars: Sidecars, ignore: Sequence[str], max_bytes: int | None
) -> ReferenceModel:
    """The package's model, opened from a folder with only its configuration and its weights."""
    stated = package.config_of(sidecars)
    config = package.check_config(stated, file.name)
    check_bytes(file.name, (tensor for tensors in file.groups.values() for tensor in tensors.values()), max_bytes)
    # Reading refuses values that are not finite, which a package would accept.
    for group, tensors in file.groups.items():
        for key in tensors:
            file.read(group, key)
    with _package_folder(package, file, config) as folder, package_errors(package.name, f"cannot open {file.name}"):
        return package.load(folder, None, ignore)


@contextmanager
def _package_folder(package: Package, file: WeightFile, config: Mapping[str, Any]) -> Iterator[Path]:
    """A temporary folder for a package's loader, named after the checkpoint."""
    config_name, weights_name = package.files
    with TemporaryDirectory(prefix="vitviz-", ignore_cleanup_errors=True) as parent:
        folder = Path(parent) / (Path(file.name).stem or "checkpoint")
        folder.mkdir()
        (folder / config_name).write_text(json.dumps(config), encoding="utf-8")
        if file.path.name.endswith(INDEX_SUFFIX):
            for shard in file.shards:
                _link(shard, folder / shard.name)
            weights_name += INDEX_SUFFIX
        _link(file.path, folder / weights_name)
        yield folder


def _link(file: Path, target: Path) -> None:
    try:
        target.symlink_to(file.resolve())
    except OSError:
        shutil.copyfile(file, target)


def _find_rule(
    sidecars: Sidecars, module: nn.Module, normalisation: str | None, architecture: str | None
) -> PreprocessingRule | None:
    """The preprocessing in the files beside a checkpoint, else timm's default for an architecture; None for neither."""
    channels = find_channels(module) or 3
    if reason := why_not_channels(channels):
        raise CheckpointError(reason)
    rule = find_rule(sidecars, channels)
    if rule is None and architecture is not None and channels == 3:
        rule = timm.default_rule(architecture)
    return rule if rule is None or normalisation is None else rule.standardised(normalisation, channels)
