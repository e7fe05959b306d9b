"""A module in memory as a :class:`vitviz.Model`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import torch
from torch import nn

from vitviz.attention.layout import Prefix
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.preprocessing import why_not_channels
from vitviz.models.devices import usable_device
from vitviz.models.watched import ModuleConfig
from vitviz.models.watched.grids import describe_grid
from vitviz.models.watched.module_config import Size
from vitviz.models.watched.module_state import check_device, check_state
from vitviz.models.watched.outputs import Forward, observation_errors, primary_output
from vitviz.models.watched.replay import Replay
from vitviz.models.watched.watched_network import WatchedNetwork
from vitviz.progress import Progress, progress_bar
from vitviz.weights.architectures import architecture_of_module
from vitviz.weights.model import Model
from vitviz.weights.modules.missing import IMAGE_SIZE, Question, labels_question, not_stated
from vitviz.weights.modules.output_choice import choose_output, find_labels, module_probability
from vitviz.weights.modules.preparation import module_preprocessing, normalisation_question, read_function
from vitviz.weights.modules.running import first_run, first_that_works
from vitviz.weights.modules.sizes import describe_overlap, find_image_size
from vitviz.weights.modules.texts import split_texts
from vitviz.weights.modules.token_grids import TokenGrids
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
    tokens, questions = TokenGrids.of(module, replay.shapes, size, patch_size, prefix)
    missing |= questions
    prepare = partial(module_preprocessing, module, preprocessing, normalisation)
    if (preparation := prepare(run.full, tokens.patches[0], channels)) is None:
        missing["normalisation"] = normalisation_question(module)
    if missing or labelling is None or tokens.prefix is None or preparation is None:
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
        names = tokens.prefix_beside(patch, prefix is not None)
        config = ModuleConfig(*size, *patch, channels, len(class_names), probability_name, names)
        return WatchedNetwork(module, name, function, config, replay)

    network = first_that_works(watch, tokens.patches)
    replay.program.on_run = lambda: None
    patch = network.config.patch_height, network.config.patch_width
    prepared, source, is_default = prepare(run.full, patch, channels) or preparation
    assumptions += (f"preprocessing {summarise(prepared)}: {source}; preprocessing=… states another",) * is_default
    card = {
        "watched from": f"{type(module).__module__}.{type(module).__name__}",
        "preprocessing": source,
        "labels": label_source,
        **({"probability": f"{probability_name} ({probability_source})"} if class_names else {}),
    }
    if (stage := tokens.stage(patch)) is not None:
        card["grid"] = describe_grid(tokens.stages, stage, network.config.depth)
        assumptions += () if patch_size else (card["grid"],)
    assumptions += _said_of_tokens(network, tokens, prefix)
    return Model(name, network, prepared, class_names, card, assumptions=assumptions, tower=tower)


def _said_of_tokens(network: WatchedNetwork, tokens: TokenGrids, prefix: Prefix | None) -> tuple[str, ...]:
    """What a user must know of a network's tokens, after its calls are verified."""
    verified, config = network.verified(network.noise()), network.config
    others = [each for each in tokens.stages if each.patch != (config.patch_height, config.patch_width)]
    found = verified.describe([each.rows * each.columns + each.extra for each in others], config.prefix)
    if config.prefix and not isinstance(prefix, Sequence | None) and not verified.reads_cls:
        found.append(
            f"prefix {config.prefix[0]!r}: the first of {prefix!r} tokens without names; its output may read other "
            "tokens, too"
        )
    return tuple(found)


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
