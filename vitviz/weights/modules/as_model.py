"""A module in memory as a :class:`vitviz.Model`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import torch
from torch import nn

from vitviz.attention.layout import Prefix, prefix_names
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.preprocessing import why_not_channels
from vitviz.models.devices import usable_device
from vitviz.models.watched import ModuleConfig
from vitviz.models.watched.grids import attention_grids, describe_grid, is_one_grid
from vitviz.models.watched.module_config import Size
from vitviz.models.watched.module_state import check_device, check_state
from vitviz.models.watched.outputs import Forward, observation_errors, primary_output
from vitviz.models.watched.replay import Replay
from vitviz.models.watched.watched_network import WatchedNetwork
from vitviz.progress import Progress, progress_bar
from vitviz.weights.architectures import architecture_of_module
from vitviz.weights.model import Model
from vitviz.weights.modules.missing import (
    IMAGE_SIZE,
    PATCH_SIZE,
    Question,
    labels_question,
    not_stated,
    prefix_question,
)
from vitviz.weights.modules.output_choice import choose_output, find_labels, module_probability
from vitviz.weights.modules.preparation import module_preprocessing, normalisation_question, read_function
from vitviz.weights.modules.running import first_run, first_that_works
from vitviz.weights.modules.sizes import (
    describe_overlap,
    find_image_size,
    find_patch_size,
    find_prefix,
)
from vitviz.weights.modules.texts import split_texts
from vitviz.weights.modules.unwrap import find_vision_part, unwrap
from vitviz.weights.read import summarise

# About as many passes as it takes to verify a module.
PASSES = 25


def load_module(
    module: nn.Module, *, name: str | None = None, report: Callable[[Progress], None] | None = None, **stated: Any
) -> Model:
    """A module as a model.

    The module's attention is watched during its own forward pass. The module is not changed.

    The other arguments are those of :func:`vitviz.load`; ``name`` replaces the module's own name, ``report`` receives
    how many of about :data:`PASSES` passes are done, in place of a bar after a second, and ``names_in_file`` are the
    names of classes in the file of its weights.

    Raises:
        ConfigError: the module does not state something necessary; it is in a state in which it cannot be watched; or
            its attention cannot be watched completely and exactly.
        CheckpointError: its preprocessing cannot be done exactly.
        ImageError: it cannot run on an image of its size.
    """
    module = unwrap(module)
    name = name or module_name(module)
    try:
        with progress_bar(f"watching {name}", total=PASSES) as bar:
            progress = report or (lambda step: bar.update(step.done - bar.n))
            return _load(module, name, progress, **stated)
    except (ConfigError, ImageError) as error:
        raise _with_architecture(module, name, error) from None


def _load(
    module: nn.Module,
    name: str,
    report: Callable[[Progress], Any],
    device: str | torch.device | None = None,
    preprocessing: Any = None,
    box: Any = None,
    normalisation: str | None = None,
    labels: Sequence[str] | None = None,
    image_size: Size | None = None,
    patch_size: Size | None = None,
    prefix: Prefix | None = None,
    forward: Forward | None = None,
    tokenizer: Any = None,
    probability: str | None = None,
    names_in_file: Mapping[str, Sequence[str]] | None = None,
) -> Model:
    module, tower, assumed = split_texts(module, tokenizer, preprocessing)
    with observation_errors(name):
        check_state(module)
    if device is not None:
        check_device(module, usable_device(device))
    tokens = find_prefix(module) if prefix is None else prefix_names(prefix)
    stated: dict[str, Any] = {
        **{"image_size": image_size, "patch_size": patch_size, "prefix": prefix, "labels": labels},
        **{"preprocessing": preprocessing, "normalisation": normalisation, "forward": forward},
    }
    if callable(preprocessing):
        preprocessing = read_function(preprocessing, box, normalisation)
    if box is not None and not isinstance(preprocessing, CallablePreprocessing):
        raise ConfigError(
            f"{name}: box: of a function alone that does not state itself what it shows; expected preprocessing = that "
            "function, or no box"
        )
    is_sized = (image_size or find_image_size(module)) is not None
    try:
        run = first_run(module, name, preprocessing, image_size, patch_size, forward)
    except (ConfigError, ImageError):
        if is_sized:
            raise
        raise not_stated(name, stated, {"image_size": IMAGE_SIZE}) from None
    size, channels = run.size, run.pixels.shape[1]
    # It is asked for with all else, which shows on images on which the module runs.
    sides = repr(size[0] if size[0] == size[1] else size)
    missing: dict[str, Question] = {} if is_sized else {"image_size": (IMAGE_SIZE[0], sides)}
    if reason := why_not_channels(channels):
        raise ConfigError(f"{name}: {reason}")
    classes = getattr(module, "num_classes", None) if labels is None else len(labels)
    function, output, assumptions = choose_output(module, run.forward, run.result, classes)
    with observation_errors(name):
        replay = _replay(lambda pixels: primary_output(function(module, pixels.clone())), run.pixels, report)
    has_logits = isinstance(run.result, Mapping) and "logits" in run.result
    known_labels = () if tower is not None and labels is None else labels
    labelling = find_labels(module, known_labels, output, has_logits, names_in_file)
    if labelling is None:
        missing["labels"] = labels_question(primary_output(output).shape[1])
    grids = attention_grids(replay.shapes, size, len(tokens or ())) if not is_one_grid(replay.shapes) else []
    count = replay.shapes[0].queries
    patches = [patch_size] if patch_size else list(dict.fromkeys(grid.patch for grid in grids))
    if not patches and not (found := find_patch_size(module, size, count, len(tokens or ()))):
        missing["patch_size"] = PATCH_SIZE
    patches = patches or [found or size]
    extra = count - (size[0] // patches[0][0]) * (size[1] // patches[0][1])
    # Of more tokens than patches, the patch size may be wrong.
    is_short = not grids and 2 * extra < count
    if prefix is None and (tokens is None or (is_short and len(tokens) < extra)):
        missing["prefix"] = prefix_question(extra)
    prepare = partial(module_preprocessing, module, preprocessing, normalisation)
    if (preparation := prepare(run.full, patches[0], channels)) is None:
        missing["normalisation"] = normalisation_question(module)
    if missing or labelling is None or tokens is None or preparation is None:
        raise not_stated(name, stated, missing)
    class_names, label_source, labels_assumed = labelling
    assumptions += (*assumed, *((f"labels {label_source}",) * labels_assumed))
    probability_name, probability_source = "softmax", ""
    if class_names:
        probability_name, probability_source, is_assumed = module_probability(
            module, probability, primary_output(output), replay, len(class_names)
        )
        assumptions += (f"probability {probability_name}: {probability_source}",) * is_assumed

    def watch(patch: Size) -> WatchedNetwork:
        grid = next((each for each in grids if each.patch == patch), None)
        # A class token that is added after the layers takes no part in their attention.
        has_none = prefix is None and (grid.extra if grid else extra if not grids else None) == 0
        own = (*size, *patch, channels, len(class_names), probability_name)
        return WatchedNetwork(module, name, function, ModuleConfig(*own, () if has_none else tokens), replay)

    network = first_that_works(watch, patches)
    replay.program.on_run = lambda: None
    patch = network.config.patch_height, network.config.patch_width
    prepared, source, is_default = prepare(run.full, patch, channels) or preparation
    if is_default:
        assumptions += (f"preprocessing {summarise(prepared)}: {source}; preprocessing=… states another",)
    card = {
        "watched from": f"{type(module).__module__}.{type(module).__name__}",
        "preprocessing": source,
        "labels": label_source,
        **({"probability": f"{probability_name} ({probability_source})"} if class_names else {}),
    }
    grid = next((each for each in grids if each.patch == patch), None)
    if grid is not None:
        card["grid"] = describe_grid(grids, grid, network.config.depth)
        assumptions += () if patch_size else (card["grid"],)
    verified, names = network.verified(network.noise()), network.config.prefix
    listed = [each.rows * each.columns + each.extra for each in grids if each.patch != patch]
    assumptions += tuple(verified.describe(listed, names))
    if names and not isinstance(prefix, Sequence | None) and not verified.reads_cls:
        unproven = f"the first of {prefix!r} tokens without names; its output may read other tokens, too"
        assumptions += (f"prefix {names[0]!r}: {unproven}",)
    return Model(name, network, prepared, class_names, card, assumptions=assumptions, tower=tower)


def _replay(
    forward: Callable[[torch.Tensor], torch.Tensor], zeros: torch.Tensor, report: Callable[[Progress], Any]
) -> Replay:
    """A module's pass for noise of a picture's size, which can be run again in part."""
    noise = torch.randn(zeros.shape, generator=torch.Generator().manual_seed(0)).to(zeros)
    with torch.inference_mode(False), torch.no_grad():
        replay, done = Replay.of(forward, noise), itertools.count(1)
        replay.program.on_run = lambda: report(Progress(min(next(done), PASSES), PASSES))
        return replay.checked(noise)


def module_name(module: nn.Module) -> str:
    """timm's name of its architecture, the checkpoint that transformers opened it from, or the name of its class."""
    pretrained = getattr(module, "pretrained_cfg", None)
    architecture = pretrained.get("architecture") if isinstance(pretrained, Mapping) else None
    opened_from = getattr(getattr(module, "config", None), "name_or_path", None)
    full_name = next(
        (name for name in (architecture, opened_from) if isinstance(name, str) and name), type(module).__name__
    )
    # A hub id has one slash; a name with more is the path of a folder.
    return full_name if full_name.count("/") <= 1 else PurePath(full_name).name


def _with_architecture(module: nn.Module, name: str, error: ConfigError | ImageError) -> ConfigError | ImageError:
    """The error, with what is known about the module: its architecture, overlapping patches, its part for pictures."""
    architecture, part, message = architecture_of_module(module), find_vision_part(module), str(error)
    if architecture is not None:
        message = f"{name} is {architecture}: {message.removeprefix(name).lstrip(': ')}"
    writes = ", and what it attends to while it writes by vitviz.load(module, processor=processor)"
    alone = f"; its part for pictures opens alone: vitviz.load(module.{part}){writes * hasattr(module, 'generate')}"
    hint = alone if part else describe_overlap(module)
    return type(error)(message + hint)
