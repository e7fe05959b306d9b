"""Reads a checkpoint by name, hub id or path: with vitviz's own network, or with the package that its files name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from vitviz.attention.memory import enough_memory
from vitviz.attention.precision import Precision, type_of
from vitviz.errors.arguments import word
from vitviz.errors.kinds import CheckpointError, ConfigError, UnknownFamilyError
from vitviz.models.devices import usable_device
from vitviz.progress import DownloadProgress
from vitviz.system.paths import user_path
from vitviz.weights.bundled import BUNDLED, resources
from vitviz.weights.formats.files import open_weights
from vitviz.weights.hub import download
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.model import ENGINES, Origin
from vitviz.weights.overrides import Stated
from vitviz.weights.read import Reading, read
from vitviz.weights.suggestions import HUB, PACKAGES, no_checkpoint
from vitviz.weights.zoo import ZOO


@dataclass(frozen=True)
class Place:
    """Where the files of a checkpoint are.

    Args:
        path: of its file or folder.
        name: the user's name for it; None for that of the file.
        origin: on the Hugging Face hub; None for a file of the user's.
        card: facts about it that are not in its file.
    """

    path: Path
    name: str | None = None
    origin: Origin | None = None
    card: Mapping[str, str] = field(default_factory=dict)


# No gradient passes through weights that were made in inference mode.
@torch.inference_mode(False)
def read_source(
    source: str | os.PathLike[str],
    stated: Stated,
    *,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    report: Callable[[Any], None] | None = None,
    verify: bool = False,
    engine: str | None = None,
) -> Reading:
    """The checkpoint of a name, hub id or path, with the facts about it; arguments as of :func:`vitviz.load`."""
    # Refuse wrong options before downloading anything.
    target_device = usable_device("cpu" if device is None else device)
    dtype = type_of("float32" if precision is None else precision)
    if engine is not None:
        word("engine", engine, ENGINES, ConfigError)
    if isinstance(source, str) and source.startswith(PACKAGES):
        from vitviz.weights.by_package import read_by_name

        package, _, named = source.partition(":")
        reading = read_by_name(package, named, stated, target_device, report)
    else:
        place = _find(source, report)
        reading = _read_with_engine(place, stated, engine, target_device, report)
        origin, card = place.origin or reading.model.origin, {**place.card, **reading.model.card}
        reading = replace(reading, model=replace(reading.model, origin=origin, card=card))
    model = reading.model
    if verify:
        from vitviz.weights.verify import PHOTO
        from vitviz.weights.verify import verify as verify_against_package

        verification = verify_against_package(reading, resources("assets") / PHOTO)
        if not verification.exact:
            raise CheckpointError(verification.sentence)
    if model.engine == "module":
        if dtype != model.network.precision:
            raise ConfigError(
                f"precision {precision!r}: {model.name} is a package's model, "
                "which computes in the float32 in which it is opened"
            )
        return reading
    network = model.own_network(model.name)
    with enough_memory(model.name, "model"):
        network.to(target_device).set_precision("float32" if precision is None else precision)
    return reading


def _find(source: str | os.PathLike[str], report: Callable[[DownloadProgress], None] | None) -> Place:
    """Where the files of a name, hub id or path are; those of the hub are downloaded into its cache."""
    if source in BUNDLED:
        return Place(resources("checkpoints") / f"{source}.safetensors")
    named = ZOO.get(source) if isinstance(source, str) else None
    if named is not None or (isinstance(source, str) and source.startswith(HUB)):
        hub_id = str(source).removeprefix(HUB) if named is None else named.repository
        repository, _, revision = hub_id.partition("@")
        folder = download(repository, revision or None, report=report)
        name, card = (repository, {}) if named is None else (named.name, named.card)
        return Place(folder, name, Origin(folder, repository, folder.name), card)
    if type(source).__name__ == "ExportedProgram":
        raise CheckpointError("a program of torch.export: pass the original torch model, or save its state_dict()")
    if not isinstance(source, str | os.PathLike) or not os.fspath(source) or not os.path.exists(user_path(source)):
        raise CheckpointError(no_checkpoint(source, (*BUNDLED, *ZOO), BUNDLED[0]))
    return Place(user_path(source))


def _read_with_engine(
    place: Place, stated: Stated, engine: str | None, device: torch.device, report: Callable[[Any], None] | None
) -> Reading:
    """Read with vitviz's own network or, if it has none, with the package that the files name."""
    has_architecture, own = "architecture" in stated.facts, ""
    if engine != "module":
        try:
            return read(place.path, stated, place.name)
        except UnknownFamilyError as error:
            package = Beside.of_source(open_weights(place.path).path, place.path)[0].package
            if engine == "own" or stated.family is not None or not (has_architecture or package):
                raise error from None
            own = f"; vitviz's own network: {error}" * has_architecture
    # Not before it is needed: it imports what watches a module.
    from vitviz.weights.by_package import read_by_package

    try:
        return read_by_package(place.path, stated, place.name, device, report)
    except CheckpointError as error:
        raise type(error)(f"{error}{own}") from None
