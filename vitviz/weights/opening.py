"""Opens a checkpoint by name, hub id or path: with vitviz's own network, or with the package that its files name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitviz.attention.precision import Precision, type_of
from vitviz.errors.arguments import integer, word
from vitviz.errors.kinds import CheckpointError, ConfigError, LimitError, UnknownFamilyError, VitvizError
from vitviz.models.devices import usable_device
from vitviz.models.require import require_vit
from vitviz.progress import DownloadProgress
from vitviz.weights.bundled import BUNDLED, resources
from vitviz.weights.formats.limits import memory_for, needed_bytes
from vitviz.weights.formats.paths import path_exists
from vitviz.weights.hub.download import download
from vitviz.weights.model import ENGINES, Origin
from vitviz.weights.overrides import check_overrides, check_patterns
from vitviz.weights.read import Reading, read_checkpoint
from vitviz.weights.suggestions import HUB, no_checkpoint
from vitviz.weights.zoo import ZOO


# No gradient passes through weights that were made in inference mode.
@torch.inference_mode(False)
def read(
    source: str | os.PathLike[str],
    *,
    family: str | None = None,
    device: str | torch.device = "cpu",
    precision: Precision = "float32",
    report: Callable[[DownloadProgress], None] | None = None,
    ignore: Sequence[str] = (),
    max_bytes: int | None = None,
    verify: bool = False,
    engine: str | None = None,
    **overrides: Any,
) -> Reading:
    """The same as :func:`load`, for a checkpoint, with the facts about it."""
    # Refuse wrong options before downloading anything.
    target_device = usable_device(device)
    dtype = type_of(precision)
    if engine is not None:
        word("engine", engine, ENGINES, ConfigError)
    open_file = partial(_open, engine=engine, device=target_device)
    options = {"ignore": ignore, "max_bytes": max_bytes, **overrides}
    reading = _read_source(source, family, report, options, open_file)
    if verify:
        from vitviz.weights.verify import PHOTO
        from vitviz.weights.verify import verify as verify_against_package

        verification = verify_against_package(reading, resources("assets") / PHOTO)
        if not verification.exact:
            raise CheckpointError(verification.sentence)
    if reading.model.engine == "module":
        if dtype != reading.model.network.precision:
            reason = "a package's model, which computes in the float32 in which it is opened"
            raise ConfigError(f"precision {precision!r}: {reading.model.name} is {reason}")
        return reading
    network = require_vit(reading.model.network, reading.model.name)
    with memory_for(reading.model.name, needed_bytes(network)):
        network.to(target_device).set_precision(precision)
    return reading


def fetch(source: str, report: Callable[[DownloadProgress], None] | None = None) -> Origin | None:
    """Download a published checkpoint into the hub's cache, so that :func:`load` opens it offline.

    Args:
        source, report: as in :func:`load`.

    Returns:
        The origin of its files; None if ``source`` is no checkpoint of the hub.

    Raises:
        CheckpointError: it cannot be downloaded.
    """
    named_model = ZOO.get(source)
    if named_model is None and not source.startswith(HUB):
        return None
    name = source.removeprefix(HUB) if named_model is None else named_model.repository
    repository, _, revision = name.partition("@")
    folder = download(repository, revision or None, report=report)
    return Origin(folder, repository, folder.name)


def _read_source(
    source: str | os.PathLike[str],
    family: str | None,
    report: Callable[[DownloadProgress], None] | None,
    overrides: dict[str, Any],
    open_file: Callable[..., Reading],
) -> Reading:
    if source in BUNDLED:
        return read_checkpoint(resources("checkpoints") / f"{source}.safetensors", None, family, **overrides)
    if isinstance(source, str):
        named_model = ZOO.get(source)
        if named_model is not None:
            folder = download(named_model.repository, report=report)
            overrides = {**named_model.overrides, **overrides}
            reading = _read_download(folder, source, family, overrides, named_model.repository, open_file)
            return replace(reading, model=replace(reading.model, card={**named_model.card, **reading.model.card}))
        if source.startswith(HUB):
            repository, _, revision = source.removeprefix(HUB).partition("@")
            folder = download(repository, revision or None, report=report)
            return _read_download(folder, repository, family, overrides, repository, open_file)
    if not path_exists(source):
        raise CheckpointError(no_checkpoint(source, (*BUNDLED, *ZOO), BUNDLED[0]))
    return open_file(Path(source), None, family, **overrides)


def _read_download(
    folder: Path,
    name: str,
    family: str | None,
    overrides: dict[str, Any],
    repository: str,
    open_file: Callable[..., Reading],
) -> Reading:
    try:
        reading = open_file(folder, name, family, **overrides)
    except (CheckpointError, ConfigError, LimitError) as error:
        # The name of a folder in the cache is a commit, which means nothing to a user.
        raise type(error)(str(error).replace(folder.name, name)) from None
    return replace(reading, model=replace(reading.model, origin=Origin(folder, repository, folder.name)))


def _open(
    path: Path,
    name: str | None,
    family: str | None,
    engine: str | None,
    device: torch.device,
    **overrides: Any,
) -> Reading:
    """Open a checkpoint with vitviz's own network or, if it has none, with the package that its files name."""
    if engine == "module":
        if family is not None:
            raise CheckpointError(f"family {family!r}: of vitviz's own network alone, and engine = 'module'")
        return _open_by_package(path, name, device, overrides)
    try:
        return read_checkpoint(path, name, family, **overrides)
    except UnknownFamilyError as error:
        from vitviz.weights.by_package import ALLOWED_OVERRIDES, names_package

        facts = overrides.keys() - {"ignore", "max_bytes"}
        is_named = "architecture" in facts or names_package(path)
        if engine == "own" or family is not None or not facts <= set(ALLOWED_OVERRIDES) or not is_named:
            raise
        refusal = str(error)
    try:
        return _open_by_package(path, name, device, overrides)
    except VitvizError as error:
        error_type = UnknownFamilyError if isinstance(error, CheckpointError) else type(error)
        raise error_type(f"{refusal}; {error}") from None


def _open_by_package(path: Path, name: str | None, device: torch.device, overrides: Mapping[str, Any]) -> Reading:
    from vitviz.weights.by_package import open_by_package

    options = dict(overrides)
    ignore, max_bytes = check_patterns(options.pop("ignore")), options.pop("max_bytes")
    if max_bytes is not None:
        integer("max_bytes", max_bytes, 0, CheckpointError)
    return open_by_package(path, name, ignore, max_bytes, device, **check_overrides(options))
