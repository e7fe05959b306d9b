"""Opens every kind of model: a checkpoint by name, hub id or path, or a module in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vitviz.attention.layout import Prefix
from vitviz.attention.precision import Precision, type_of, without_autocast
from vitviz.errors.arguments import integer, named_arguments, word
from vitviz.errors.kinds import CheckpointError, ConfigError, LimitError, UnknownFamilyError, VitvizError
from vitviz.errors.messages import quote
from vitviz.models.activations import Activation
from vitviz.models.config import FinalNorm
from vitviz.models.devices import usable_device
from vitviz.models.pooling import PoolingName
from vitviz.models.positions import PositionRule
from vitviz.models.probability import Probability
from vitviz.models.require import require_vit
from vitviz.weights.conversion.canonical import Check
from vitviz.weights.formats.limits import memory_for, needed_bytes
from vitviz.weights.formats.paths import path_exists
from vitviz.weights.hub.download import DownloadProgress, download
from vitviz.weights.metadata.preparation import Normalisation
from vitviz.weights.model import ENGINES, EngineName, Forward, Labels, Model, Origin
from vitviz.weights.overrides import check_overrides, check_patterns
from vitviz.weights.read import Reading, read_checkpoint
from vitviz.weights.suggestions import HUB, no_checkpoint
from vitviz.weights.zoo import ZOO

# Modules and packages are imported when one is opened: `import vitviz` is hardly slower than `import torch`.
if TYPE_CHECKING:
    from vitviz.weights.adapters import Adapter

BUNDLED = ("vitviz-photos",)


@named_arguments(CheckpointError)
@torch.inference_mode(False)
@without_autocast()
def load(
    source: str | os.PathLike[str] | nn.Module = BUNDLED[0],
    *,
    family: str | None = None,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    report: Callable[[DownloadProgress], None] | None = None,
    ignore: Sequence[str] = (),
    max_bytes: int | None = None,
    architecture: str | None = None,
    heads: int | None = None,
    activation: Activation | None = None,
    pooling: PoolingName | None = None,
    final_norm: FinalNorm | None = None,
    norm_epsilon: float | None = None,
    position_rule: PositionRule | None = None,
    normalisation: Normalisation | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    probability: Probability | None = None,
    verify: bool = False,
    preprocessing: Any = None,
    labels: Labels | None = None,
    prefix: Prefix | None = None,
    forward: Forward | None = None,
    engine: EngineName | None = None,
    base: str | os.PathLike[str] | None = None,
) -> Model:
    """Open a checkpoint of any family that vitviz reads, or a module in memory.

    Nothing in a checkpoint's file is ever executed. If vitviz has no network for its family, the package that its files
    name opens it, provided that the package is installed: from safetensors, without running code of the checkpoint.

    The weights are frozen, since a loaded model is for analysis; training builds its own. If the file does not state
    something that changes numbers, an error asks for it, or the value of published checkpoints of the same shapes is
    used and listed in ``model.assumptions``.

    A module (of timm, transformers, torchvision, open_clip or your own class) is not changed. Its attention is captured
    during its own forward pass and checked against what the module computes, or its weights are copied into vitviz's
    own network (``engine``). If the module does not state something, an error asks for it by name. For a module, only
    ``device``, ``normalisation``, ``image_size``, ``patch_size``, ``probability``, and ``preprocessing`` to ``engine``
    apply.

    Args:
        source: the name of a bundled or published checkpoint (``"dino_vits16"``; ``vitviz models`` lists them), a hub
            id (``"hf:facebook/dinov2-small"``, optionally followed by ``@revision``), a path, or a module in evaluation
            mode. The path is that of a file, or of a folder with a file and its configuration, with the snapshots of a
            training run (it opens the last, :func:`open_snapshot` the others), or with a LoRA adapter of peft.
        family: name of its family, if its keys do not determine it.
        device: where the model runs, such as ``"cuda"``; images are moved to it. The default is the CPU, or for a
            module the device that it is on.
        precision: of its layers: ``"float32"``, the default, ``"bfloat16"`` or ``"float16"``. A module keeps its own.
        report: receives the progress of a download.
        ignore: patterns of keys and settings to leave out: ``["head.*", "config.json:model_args.foo"]``.
        max_bytes: memory that its network may take; by default, 2 GiB or 8 times the size of its file, whichever is
            more. Layers that share a tensor in the file take memory for a tensor each.
        architecture: timm's name of the architecture, such as ``"vit_base_patch16_224"``; it implies everything that
            timm's weights do not state.
        heads: attention heads of a layer.
        activation: of the MLP, a name in :data:`vitviz.models.activations.ACTIVATIONS`.
        pooling: input of the classifier, a name in :data:`vitviz.models.pooling.POOLINGS`.
        final_norm: ``"before pooling"``, ``"after pooling"`` or ``"none"``.
        norm_epsilon: added to the variance in every layer norm.
        position_rule: how positions are resized to another grid, a name in
            :data:`vitviz.models.positions.POSITION_RULES`.
        normalisation: how pixels are standardised: ``"imagenet"``, ``"half"``, ``"clip"`` or ``"none"``.
        image_size, patch_size: in pixels, one number or height and width.
        probability: what makes probabilities of the outputs, a name in
            :data:`vitviz.models.probability.PROBABILITIES`: ``"softmax"``, ``"sigmoid"`` for several labels,
            ``"identity"`` for outputs that are probabilities, ``"none"`` for a regression.
        verify: also build the model of the package that the files beside the checkpoint name, and refuse the
            checkpoint if a number differs; see :func:`vitviz.weights.verify.verify`.
        preprocessing: of images for a module: a :class:`vitviz.Preprocessing`; a transform of torchvision, timm,
            open_clip or albumentations, an image processor of transformers, or any function from a PIL image (or a
            tensor ``"channel height width"``) to the input ``"channel height width"``; or timm's ``data_config``. A
            function is run on test pictures: if vitviz's own preprocessing gives the same pixels, the model has that;
            otherwise the function itself makes every input, at its own resolution and fit.
        labels: of a module's classes, from 0 on; ``()`` if its outputs are features.
        prefix: names of a module's tokens that are not patches, in their order: ``["cls", "register 1"]``; or their
            number, for the CLS token and then registers.
        forward: calls a module: takes it and pixels ``"batch channel height width"``, and returns logits
            ``"batch class"``, or features ``"batch feature"``.
        engine: for a module: ``"own"`` copies its weights into vitviz's own network, which is faster, if both agree
            within 1e-5; ``"module"`` captures the module. The default is the own network, if vitviz has one for the
            family and the module has nothing that a copy would lack, such as hooks and adapters; ``model.engine`` tells
            the choice. For a checkpoint: ``"own"`` allows only vitviz's own network, ``"module"`` captures the model of
            timm, transformers or open_clip that the files beside it name. The default is that model only if vitviz has
            no network for the family.
        base: for an adapter, its base model: any ``source`` of a checkpoint. By default, the one that the adapter's
            configuration names. All other arguments apply to the merged checkpoint.

    Raises:
        CheckpointError: there is no such checkpoint, it cannot be downloaded, or it cannot be loaded exactly; or
            ``verify`` finds a difference, or nothing to compare with.
        ConfigError: there is no such precision, or no such device on this machine; or the module is in a state in
            which it cannot be captured, does not state something necessary, or its attention cannot be captured
            exactly.
        ImageError: the module cannot run on an image of its size.
        LimitError: its network takes more memory than is allowed or free.

    >>> vitviz.load()
    Model('vitviz-photos': 8 layers × 6 heads, width 384, 112×112 pixels in patches of 8, 108 classes, on cpu...)
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
        "probability": probability,
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
        names = ("normalisation", "image_size", "patch_size", "probability")
        shared = {name: of_checkpoints.pop(name) for name in names}
        _refuse(of_checkpoints, f"a module says itself; expected {', '.join(('device', *shared, *of_modules))}")
        from vitviz.weights.modules.load import load_module

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
    """Refuse arguments that do not apply to the kind of source."""
    names = [name for name, value in arguments.items() if value is not None]
    if names:
        raise ConfigError(f"{', '.join(names)}: {reason}")


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
    base: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Reading:
    """The same as :func:`load`, for a checkpoint, with the facts about it."""
    from vitviz.weights.adapters import find_adapter, open_adapter

    # Refuse wrong options before downloading anything.
    target_device = usable_device(device)
    dtype = type_of(precision)
    if engine is not None:
        word("engine", engine, ENGINES, ConfigError)
    open_file = partial(_open, engine=engine, device=target_device)
    options = {"ignore": ignore, "max_bytes": max_bytes, **overrides}
    folder = find_adapter(source)
    if folder is None:
        if base is not None:
            raise ConfigError(f"base = {quote(base)}: of an adapter alone, a folder with adapter_config.json")
        reading = _read_source(source, family, report, options, open_file)
    else:
        reading = _read_adapter(open_adapter(folder), base, family, report, options, open_file)
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
    return open_file(Path(source), None, family, own=True, **overrides)


def _read_adapter(
    adapter: Adapter,
    base: str | os.PathLike[str] | None,
    family: str | None,
    report: Callable[[DownloadProgress], None] | None,
    overrides: dict[str, Any],
    open_file: Callable[..., Reading],
) -> Reading:
    """An adapter merged into its base model, with the adapter's name and without the base model's sidecars."""
    source = adapter.base() if base is None else base
    if source in BUNDLED:
        raise CheckpointError(f"{adapter.name}: base {source!r} is vitviz's own; expected a model of another package")
    reading = _read_source(source, family, report, overrides, partial(open_file, adapter=adapter))
    check = Check("adapter", f"{len(adapter.file.groups[''])} tensors of LoRA", f"merged into {source}")
    card = {**reading.model.card, check.fact: check.text}
    model = replace(reading.model, name=adapter.name, card=card, origin=Origin(adapter.folder))
    # No package opens a merged adapter, so there is no reference to verify against.
    return Reading(model, (check, *reading.checks), reading.ignored)


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
    own: bool = False,
    **overrides: Any,
) -> Reading:
    """Open a checkpoint with vitviz's own network or, if it has none, with the package that its files name."""
    if engine == "module":
        if family is not None:
            raise CheckpointError(f"family {family!r}: of vitviz's own network alone, and engine = 'module'")
        return _open_by_package(path, name, device, overrides)
    try:
        return read_checkpoint(path, name, family, own=own, **overrides)
    except UnknownFamilyError as error:
        from vitviz.weights.by_package import ALLOWED_OVERRIDES, names_package

        facts = overrides.keys() - {"ignore", "max_bytes", "adapter"}
        is_named = "architecture" in facts or names_package(path, own)
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
    adapter = options.pop("adapter", None)
    if max_bytes is not None:
        integer("max_bytes", max_bytes, 0, CheckpointError)
    return open_by_package(path, name, ignore, max_bytes, device, adapter, **check_overrides(options))


def resources(kind: str) -> Path:
    """The folder of the bundled ``"checkpoints"`` or ``"assets"``: in an installed package, or in the repository."""
    package = Path(__file__).parents[1]
    return package / kind if (package / kind).is_dir() else package.parent / kind
