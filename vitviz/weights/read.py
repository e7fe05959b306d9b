"""Opens a checkpoint of any family as a :class:`Model`, with all facts about it and their sources."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.errors.messages import legible, several
from vitviz.images.preprocessing import Preprocessing, why_not_channels
from vitviz.models.config import ViTConfig
from vitviz.models.given import GivenConfig
from vitviz.models.network import NetworkConfig
from vitviz.system.paths import user_path
from vitviz.weights.conversion.assemble import assemble, infer_config
from vitviz.weights.conversion.canonical import Check, MatchedCheckpoint
from vitviz.weights.conversion.heads import facts_with_pooling
from vitviz.weights.formats.files import open_weights
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.metadata.class_names import find_class_names
from vitviz.weights.metadata.classes import read_labels, read_probability
from vitviz.weights.metadata.stated_preprocessing import find_rule
from vitviz.weights.model import Model, Origin
from vitviz.weights.native import FORMAT, read_native
from vitviz.weights.overrides import NOTHING, Stated
from vitviz.weights.recognize import STATED_BY_USER, recognize
from vitviz.weights.snapshots import find_snapshots, open_snapshots

LEFT_OUT = "left out by hand"
ALONE = "but would be with it alone in a folder of their own"


@dataclass(frozen=True, eq=False)
class Reading:
    """A checkpoint and the facts about it.

    Args:
        model: ready to use.
        checks: the facts with their sources, in the order in which they were recorded.
        ignored: keys of the file that are not needed, with the reason.
        files: beside it.
    """

    model: Model
    checks: tuple[Check, ...]
    ignored: Mapping[str, str]
    files: Beside = field(default_factory=Beside)


def read(path: str | os.PathLike[str], stated: Stated = NOTHING, name: str | None = None) -> Reading:
    """Read a checkpoint of any family. Nothing in it is ever executed.

    Args:
        path: a file, a folder with a file and its configuration, or a folder with the snapshots of a training run.
        stated: by the user.
        name: of the model; by default, the name of the file.

    Raises:
        CheckpointError: it cannot be loaded exactly.
        LimitError: its network takes more memory than is free.
    """
    source = user_path(path)
    snapshots = find_snapshots(source)
    if snapshots is not None:
        return _native_reading(source.name, open_snapshots(snapshots, name), stated)
    file = open_weights(source, name)
    if file.metadata.get("format", "").startswith(FORMAT.split()[0]):
        return _native_reading(file.name, read_native(file, name), stated)
    files, is_unread = Beside.of_source(file.path, source)
    skipped = Check("skipped objects", several(file.skipped), "they are no tensors; nothing of them was run")
    unread = Check("configuration", "not read", f"it lies beside a file with an unusual name, {ALONE}")
    assumed = [*[skipped] * bool(file.skipped), *[unread] * is_unread]
    try:
        return read_tensors(file, files, stated, name, assumed)
    except CheckpointError as error:
        if not is_unread:
            raise
        raise type(error)(f"{error}; the configuration beside it is not read, {ALONE}") from None
    # A text in place of a number, or a list in place of a dict.
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        if files == Beside():
            raise
        raise CheckpointError(
            f"{file.name}: a value of the wrong kind in the JSON files beside it "
            f"({type(error).__name__}: {legible(str(error))})"
        ) from None


def read_tensors(
    file: WeightFile,
    files: Beside,
    stated: Stated,
    name: str | None = None,
    assumed: Sequence[Check] = (),
) -> Reading:
    """Read an open file or tensors in memory.

    Args:
        file: with the tensors.
        files: beside it.
        stated: by the user.
        name: of the model; by default, the name of the file.
        assumed: what else is assumed.

    Raises:
        CheckpointError, LimitError: as :func:`read`.
    """
    file, ignored_keys = file.without(stated.ignore)
    checkpoint = recognize(file, files, stated)
    checkpoint.checks.extend(replace(check, assumed=True) for check in assumed)
    checkpoint.ignored.update(dict.fromkeys(ignored_keys, LEFT_OUT))
    checkpoint.settle(facts_with_pooling(checkpoint))
    for fact, value in stated.facts.items():
        if fact != "labels":
            checkpoint.record(fact, value, STATED_BY_USER)
    config = infer_config(checkpoint)
    position = len(checkpoint.checks)
    preprocessing = _preprocessing(checkpoint, files, config)
    names, stated_names = find_class_names(file.entries or file.metadata), stated.facts.get("labels")
    labels, label_source, is_assumed = read_labels(files.config, config.classes, names, stated_names)
    checkpoint.record("labels", f"{len(labels):,}" if labels else "none", label_source, is_assumed)
    if config.classes and "probability" not in stated.facts:
        function, function_source, is_assumed = read_probability(files.config, config.classes)
        config = replace(config, probability=checkpoint.record("probability", function, function_source, is_assumed))
    network = assemble(checkpoint, config)
    card = {check.fact: check.text for check in checkpoint.checks}
    described = [check for check in describe(config) if check.fact not in card]
    checks = (*checkpoint.checks[:position], *described, *checkpoint.checks[position:])
    assumptions = tuple(check.assumption for check in checkpoint.checks if check.assumed)
    name = name or Path(file.name).stem
    try:
        model = Model(name, network, preprocessing, labels, card, Origin(file.path.parent), assumptions=assumptions)
    except ConfigError as error:
        raise CheckpointError(f"{file.name}: {error}") from None
    return Reading(model, checks, dict(checkpoint.ignored), files)


def _native_reading(file: str, model: Model, stated: Stated) -> Reading:
    options = [*["family"] * (stated.family is not None), *stated.facts, *["ignore"] * bool(stated.ignore)]
    if options:
        raise CheckpointError(
            f"{file}: a checkpoint of vitviz's own says everything itself; leave out {', '.join(options)}"
        )
    header = "the header of its file"
    checks = [
        Check("family", "vitviz's own", header),
        *describe(model.network.config, header, header),
        Check("preprocessing", summarise(model.preprocessing), header),
        Check("labels", f"{len(model.labels):,}", header),
    ]
    if model.snapshots is not None:
        steps = f"{several([f'{step:,}' for step in model.snapshots.steps], 20)}; this is the last"
        checks.append(Check("training steps", steps, "names of its files"))
    return Reading(model, tuple(checks), {})


def describe(
    config: NetworkConfig, shapes: str = "shapes of its weights", family: str = "its family or its configuration"
) -> list[Check]:
    """A configuration as facts with sources.

    Args:
        config: of the network.
        shapes: source of facts that the shapes of the weights determine.
        family: source of the other facts.
    """
    trained = config.layout(config.image_height, config.image_width)
    facts = {
        "layers": (f"{config.depth}", shapes),
        "heads": (f"{config.heads}" + f", each with {config.head_width} features" * bool(config.head_width), family),
        "width": (f"{config.width}", shapes),
        "patch": (f"{config.patch_height}×{config.patch_width} pixels, {config.channels} channels", shapes),
        "grid": (f"{trained.grid_height}×{trained.grid_width} patches", shapes),
        "prefix tokens": (", ".join(config.prefix) or "none", shapes),
        "classes": (f"{config.classes:,}" if config.classes else "no classifier", shapes),
        "pooling": (config.pooling, family),
    }
    if isinstance(config, GivenConfig):
        facts = {fact: facts[fact] for fact in ("layers", "heads", "grid", "prefix tokens")}
    if isinstance(config, ViTConfig):
        facts |= {
            "MLP width": (f"{config.mlp_width}", shapes),
            "final norm": (config.final_norm, family),
            "activation": (f"{config.activation}{', gated' * config.gated_mlp}", family),
            "positions": ("rotary" if config.rotary else f"learned; other grids: {config.position_rule}", family),
        }
    return [Check(fact, value, source) for fact, (value, source) in facts.items()]


def _preprocessing(checkpoint: MatchedCheckpoint, files: Beside, config: ViTConfig) -> Preprocessing:
    """The preprocessing that a file states, or the convention of the family; recorded with its source."""
    if reason := why_not_channels(config.channels):
        raise CheckpointError(f"{checkpoint.name}: {reason}")
    facts, patch = checkpoint.facts, (config.patch_height, config.patch_width)
    rule = facts.get("transform", checkpoint.family.default_transform)
    if len(rule.preprocessing.mean) != config.channels:
        halves, source = (0.5,) * config.channels, f"{rule.source}, with mean and std 0.5 for grey pictures"
        rule = replace(rule, source=source, preprocessing=replace(rule.preprocessing, mean=halves, std=halves))
    if "image_size" in checkpoint.overrides:
        rule = replace(rule, is_sized=False)
    trained = config.layout(config.image_height, config.image_width)
    size: tuple[int, int] = facts.get("image_size") or (config.image_height, config.image_width)
    if (size[0] // patch[0], size[1] // patch[1]) != (trained.grid_height, trained.grid_width):
        # Of sides that are no multiple of the patch, the network reads the whole patches.
        size = config.image_height, config.image_width
    stated, normalisation = find_rule(files, config.channels), checkpoint.overrides.get("normalisation")
    rule = stated or rule
    if normalisation is not None:
        rule = rule.standardised(normalisation, config.channels)
    addition = "; no file beside the checkpoint says it" if stated is None else rule.assumption
    preprocessing, source = rule.fit_network(*size, patch, bool(facts.get("any_size")))
    source += addition + "; pass normalisation=… where yours differs" * (bool(addition) and normalisation is None)
    checkpoint.record("preprocessing", summarise(preprocessing), source, bool(addition))
    return preprocessing


def summarise(preprocessing: Preprocessing) -> str:
    """A preprocessing in one line."""
    fractions = {"crop": preprocessing.crop_fraction, "squash": preprocessing.squash_fraction}
    fraction = fractions.get(preprocessing.fit, 1)
    # A crop with fraction 1 still cuts the longer side.
    fraction_text = f" to {fraction:.3g}" if preprocessing.fit == "crop" or fraction < 1 else ""
    mean, std = (" ".join(f"{value:.3g}" for value in values) for values in (preprocessing.mean, preprocessing.std))
    sharpness = (
        "" if preprocessing.detail is None else f", no sharper than {preprocessing.detail}×{preprocessing.detail}"
    )
    return (
        f"{preprocessing.height}×{preprocessing.width}, {preprocessing.fit}{fraction_text}, "
        f"{preprocessing.interpolation} by {preprocessing.backend}{sharpness}, mean {mean}, std {std}"
    )
