"""One door to every checkpoint: by the name of a published one, by hub id, or by path."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitviz.attention.precision import type_of
from vitviz.errors.arguments import integer, named_arguments, word
from vitviz.errors.kinds import CheckpointError, ConfigError, LimitError, UnknownFamilyError, VitvizError
from vitviz.errors.messages import quote
from vitviz.models.devices import usable_device
from vitviz.models.require import require_vit
from vitviz.weights.adapters import Adapter, find_adapter, open_adapter
from vitviz.weights.by_package import FACTS, names_package, open_by_package
from vitviz.weights.conversion.canonical import Check
from vitviz.weights.formats.limits import memory_for, needed_bytes
from vitviz.weights.formats.paths import path_exists
from vitviz.weights.hub.download import DownloadProgress, download
from vitviz.weights.model import Model, Origin
from vitviz.weights.modules.calling import Forward
from vitviz.weights.modules.load import Labels, load_module
from vitviz.weights.modules.own_engine import ENGINES
from vitviz.weights.overrides import check_overrides, check_patterns
from vitviz.weights.read import Reading, read_checkpoint
from vitviz.weights.suggestions import HUB, no_checkpoint
from vitviz.weights.verify import PHOTO
from vitviz.weights.verify import verify as hold_to_package
from vitviz.weights.zoo import ZOO

BUNDLED = ("vitviz-photos",)


@named_arguments(CheckpointError)
def load(
    source: str | os.PathLike[str] | nn.Module = BUNDLED[0],
    *,
    family: str | None = None,
    device: str | torch.device | None = None,
    precision: str | None = None,
    report: Callable[[DownloadProgress], None] | None = None,
    ignore: Sequence[str] = (),
    max_bytes: int | None = None,
    architecture: str | None = None,
    heads: int | None = None,
    activation: str | None = None,
    pooling: str | None = None,
    final_norm: str | None = None,
    norm_epsilon: float | None = None,
    position_rule: str | None = None,
    normalisation: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    verify: bool = False,
    preprocessing: Any = None,
    labels: Labels | None = None,
    prefix: Sequence[str] | None = None,
    forward: Forward | None = None,
    engine: str | None = None,
    base: str | os.PathLike[str] | None = None,
) -> Model:
    """Open a checkpoint of any family that vitviz reads, or a module that is in memory already.

    Nothing in a checkpoint's file is ever executed. Where vitviz has no network of its own for its family, the package
    opens it that its files name, if that is installed: from safetensors, without code of the checkpoint's own.

    Its weights are frozen: a loaded model is to be looked at, training builds its own. What its file leaves open and
    changes numbers is asked for; what was taken from published checkpoints of the same shapes instead stands in
    ``model.assumptions``.

    A module (timm, transformers, torchvision, open_clip, a class of one's own) stays exactly as it is. Its attention is
    captured while its own forward pass runs, and held to what the module computes; or its weights are copied into
    vitviz's own network (``engine``). What it does not say of itself is asked for by name. Of a module, only
    ``device``, ``normalisation``, ``image_size``, ``patch_size`` and the last five parameters can be said.

    Args:
        source: the name of a bundled or published checkpoint (``"dino_vits16"``; ``vitviz models`` lists them), a hub
            id (``"hf:facebook/dinov2-small"``, with ``@revision`` behind it if wanted), or the path of a file or of a
            folder with a file and its configuration, or with the snapshots of a training run, of which it opens the
            last (:func:`open_snapshot` the others), or with a LoRA adapter of peft's; or a module in evaluation mode.
        family: the name of its family, where its keys do not tell.
        device: where the model runs, such as ``"cuda"``; images are brought to it. The processor where it is not given;
            a module stays where it is.
        precision: in what its layers compute: ``"float32"``, the default, ``"bfloat16"`` or ``"float16"``. A module
            computes in its own.
        report: receives how far a download is.
        ignore: patterns of keys and settings to leave out: ``["head.*", "config.json:model_args.foo"]``.
        max_bytes: memory that its network may take; where it is not given, 2 GiB or 8 times the size of its file,
            whichever is more. A file may let many layers share a tensor, which then takes the memory of as many.
        architecture: timm's name of the model that the file has weights of, such as ``"vit_base_patch16_224"``: tells
            everything that timm's weights leave open.
        heads: attention heads of a layer.
        activation: of the MLP, a name in :data:`vitviz.models.activations.ACTIVATIONS`.
        pooling: what is classified, a name in :data:`vitviz.models.pooling.POOLINGS`.
        final_norm: ``"before pooling"``, ``"after pooling"`` or ``"none"``.
        norm_epsilon: added to the variance in every layer norm.
        position_rule: how positions are carried to another grid, a name in
            :data:`vitviz.models.positions.POSITION_RULES`.
        normalisation: how pixels are standardised: ``"imagenet"``, ``"half"``, ``"clip"`` or ``"none"``.
        image_size, patch_size: in pixels, one number or height and width.
        verify: also build the model of the package that the files beside the checkpoint name, and refuse the
            checkpoint where a number differs; see :func:`vitviz.weights.verify.verify`.
        preprocessing: how images are prepared for a module: a :class:`vitviz.Preprocessing`, an image processor of
            transformers, the ``transforms()`` of torchvision's weights, a transform of timm or open_clip, or timm's
            ``data_config``.
        labels: of a module's classes, from 0 on; ``()`` where its outputs are features.
        prefix: names of a module's tokens that are no patches, in their order: ``["cls", "register 1"]``.
        forward: how a module is called: takes it and pixels ``"batch channel height width"``, and returns logits
            ``"batch class"``, or features ``"batch feature"``.
        engine: of a module: ``"own"`` for vitviz's own network with a copy of its weights, which is faster, once both
            agree within 1e-5; ``"module"`` for the module, captured. Where it is not given, the own one if vitviz has
            one of the family and nothing that a copy would lack is in the module, such as hooks and adapters;
            ``model.engine`` says which. Of a checkpoint: ``"own"`` for vitviz's own network alone, ``"module"`` for the
            model of timm, transformers or open_clip that the files beside it name, captured. Where it is not given,
            that model if the family is none of vitviz's.
        base: of an adapter, the model that it is merged into: whatever ``source`` may be of a checkpoint. Where it is
            not given, what the adapter's configuration names. What else is said is said of both as one checkpoint.

    Raises:
        CheckpointError: there is no such checkpoint, it cannot be downloaded, or it cannot be loaded exactly; or it is
            to be verified and differs from its package, or cannot be held to it.
        ConfigError: there is no such precision, or no such device on this machine; or the module is in a state in
            which it cannot be captured, does not say what has to be known, or its attention cannot be seen exactly.
        ImageError: the module cannot be run on an image of its size.
        LimitError: its network takes more memory than is allowed or free.
    """
    overrides = {
        "architecture": architecture,
        "heads": heads,
        "activation": activation,
        "pooling": pooling,
        "final_norm": final_norm,
        "norm_epsilon": norm_epsilon,
        "position_rule": position_rule,
        "normalisation": normalisation,
        "image_size": image_size,
        "patch_size": patch_size,
    }
    of_modules: dict[str, Any] = {
        "preprocessing": preprocessing,
        "labels": labels,
        "prefix": prefix,
        "forward": forward,
        "engine": engine,
    }
    if isinstance(source, nn.Module):
        of_checkpoints: dict[str, Any] = {**overrides, "family": family, "precision": precision, "report": report}
        of_checkpoints |= {"ignore": ignore or None, "max_bytes": max_bytes, "verify": verify or None, "base": base}
        shared = {name: of_checkpoints.pop(name) for name in ("normalisation", "image_size", "patch_size")}
        _refuse(of_checkpoints, f"a module says itself; expected {', '.join(('device', *shared, *of_modules))}")
        return load_module(source, device=device, **shared, **of_modules)
    of_modules.pop("engine")
    _refuse(of_modules, "of a module in memory alone; a checkpoint says it itself")
    facts: dict[str, Any] = {fact: value for fact, value in overrides.items() if value is not None}
    reading = read(
        source,
        family=family,
        device="cpu" if device is None else device,
        precision="float32" if precision is None else precision,
        report=report,
        ignore=ignore,
        max_bytes=max_bytes,
        verify=verify,
        engine=engine,
        base=base,
        **facts,
    )
    return reading.model


def _refuse(arguments: Mapping[str, Any], reason: str) -> None:
    """Refuse arguments that do not belong to what is loaded."""
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise ConfigError(f"{', '.join(given)}: {reason}")


def read(
    source: str | os.PathLike[str],
    *,
    family: str | None = None,
    device: str | torch.device = "cpu",
    precision: str = "float32",
    report: Callable[[DownloadProgress], None] | None = None,
    ignore: Sequence[str] = (),
    max_bytes: int | None = None,
    verify: bool = False,
    engine: str | None = None,
    base: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Reading:
    """As :func:`load`, with everything that was found out about the checkpoint."""
    # Said before anything is downloaded.
    place = usable_device(device)
    dtype = type_of(precision)
    if engine is not None:
        word("engine", engine, ENGINES, ConfigError)
    open_file = partial(_open, engine=engine, device=place)
    options = {"ignore": ignore, "max_bytes": max_bytes, **overrides}
    folder = find_adapter(source)
    if folder is None:
        if base is not None:
            raise ConfigError(f"base = {quote(base)}: of an adapter alone, a folder with adapter_config.json")
        reading = _read(source, family, report, options, open_file)
    else:
        reading = _read_adapter(open_adapter(folder), base, family, report, options, open_file)
    if verify:
        found = hold_to_package(reading, resources("assets") / PHOTO)
        if not found.exact:
            raise CheckpointError(found.sentence)
    if reading.model.engine == "module":
        if dtype != reading.model.network.precision:
            computes = "a package's model, which computes in the float32 in which it is opened"
            raise ConfigError(f"precision {precision!r}: {reading.model.name} is {computes}")
        return reading
    network = require_vit(reading.model.network, reading.model.name)
    with memory_for(reading.model.name, needed_bytes(network)):
        network.to(place).set_precision(precision)
    return reading


def fetch(source: str, report: Callable[[DownloadProgress], None] | None = None) -> Origin | None:
    """Have the files of a published checkpoint in the hub's cache, so that :func:`load` opens it without a network.

    Args:
        source, report: as :func:`load` takes them.

    Returns:
        Where its files are; None of what is no checkpoint of the hub.

    Raises:
        CheckpointError: it cannot be downloaded.
    """
    named = ZOO.get(source)
    if named is None and not source.startswith(HUB):
        return None
    name = source.removeprefix(HUB) if named is None else named.repository
    repository, _, revision = name.partition("@")
    folder = download(repository, revision or None, report=report)
    return Origin(folder, repository, folder.name)


def _read(
    source: str | os.PathLike[str],
    family: str | None,
    report: Callable[[DownloadProgress], None] | None,
    overrides: dict[str, Any],
    open_file: Callable[..., Reading],
) -> Reading:
    if source in BUNDLED:
        return read_checkpoint(resources("checkpoints") / f"{source}.safetensors", None, family, **overrides)
    if isinstance(source, str):
        named = ZOO.get(source)
        if named is not None:
            folder = download(named.repository, report=report)
            overrides = {**named.overrides, **overrides}
            reading = _read_download(folder, source, family, overrides, named.repository, open_file)
            return replace(reading, model=replace(reading.model, card={**named.card, **reading.model.card}))
        if source.startswith(HUB):
            repository, _, revision = source.removeprefix(HUB).partition("@")
            folder = download(repository, revision or None, report=report)
            return _read_download(folder, repository, family, overrides, repository, open_file)
    if not path_exists(source):
        raise CheckpointError(no_checkpoint(source, (*BUNDLED, *ZOO), BUNDLED[0]))
    return open_file(Path(source), None, family, **overrides)


def _read_adapter(
    adapter: Adapter,
    base: str | os.PathLike[str] | None,
    family: str | None,
    report: Callable[[DownloadProgress], None] | None,
    overrides: dict[str, Any],
    open_file: Callable[..., Reading],
) -> Reading:
    """An adapter merged into its base model, under the adapter's name and with none of the base model's files."""
    source = adapter.base() if base is None else base
    if source in BUNDLED:
        raise CheckpointError(f"{adapter.name}: base {source!r} is vitviz's own; expected a model of another package")
    reading = _read(source, family, report, overrides, partial(open_file, adapter=adapter))
    merged = Check("adapter", f"{len(adapter.file.groups[''])} tensors of LoRA", f"merged into {source}")
    card = {**reading.model.card, merged.fact: merged.text}
    model = replace(reading.model, name=adapter.name, card=card, origin=Origin(adapter.folder))
    # No package opens the two together: there is nothing that it could be held to.
    return Reading(model, (merged, *reading.checks), reading.ignored)


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
        # A folder in the cache is named by its commit, which means nothing to a reader.
        raise type(error)(str(error).replace(folder.name, name)) from None
    return replace(reading, model=replace(reading.model, origin=Origin(folder, repository, folder.name)))


def _open(
    path: Path, name: str | None, family: str | None, engine: str | None, device: torch.device, **overrides: Any
) -> Reading:
    """A checkpoint by vitviz's own network; where it has none of the family, by the package that its files name."""
    if engine == "module":
        if family is not None:
            raise CheckpointError(f"family {family!r}: of vitviz's own network alone, and engine = 'module'")
        return _by_package(path, name, device, overrides)
    try:
        return read_checkpoint(path, name, family, **overrides)
    except UnknownFamilyError as error:
        facts = overrides.keys() - {"ignore", "max_bytes", "adapter"}
        is_named = "architecture" in facts or names_package(path)
        if engine == "own" or family is not None or not facts <= set(FACTS) or not is_named:
            raise
        refusal = str(error)
    try:
        return _by_package(path, name, device, overrides)
    except VitvizError as error:
        kind = UnknownFamilyError if isinstance(error, CheckpointError) else type(error)
        raise kind(f"{refusal}; {error}") from None


def _by_package(path: Path, name: str | None, device: torch.device, overrides: Mapping[str, Any]) -> Reading:
    options = dict(overrides)
    ignore, max_bytes = check_patterns(options.pop("ignore")), options.pop("max_bytes")
    adapter = options.pop("adapter", None)
    if max_bytes is not None:
        integer("max_bytes", max_bytes, 0, CheckpointError)
    return open_by_package(path, name, ignore, max_bytes, device, adapter, **check_overrides(options))


def resources(kind: str) -> Path:
    """The folder of the bundled ``"checkpoints"`` or ``"assets"``: in an installed package, or in the repository."""
    package = Path(__file__).parents[1]
    return package / kind if (package / kind).is_dir() else package.parent / kind
