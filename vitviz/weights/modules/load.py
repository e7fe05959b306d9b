"""A module in memory as a :class:`vitviz.Model`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import PurePath
from typing import Any, TypeVar

import torch
from torch import nn

from vitviz.attention.layout import Prefix, prefix_names
from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.images.callable_preprocessing import CallablePreprocessing
from vitviz.images.preprocessing import Preprocessing, why_not_channels
from vitviz.models.devices import usable_device
from vitviz.models.watched import ModuleConfig
from vitviz.models.watched.facts import Size
from vitviz.models.watched.grids import attention_grids, describe_grid, is_one_grid
from vitviz.models.watched.network import WatchedNetwork
from vitviz.models.watched.outputs import Forward, first_output, is_vector, observation_errors, primary_output
from vitviz.models.watched.replay import Replay
from vitviz.models.watched.state import check_device, check_state, device_of, dtype_of
from vitviz.progress import Progress, progress_bar
from vitviz.weights.architectures import architecture_of_module
from vitviz.weights.metadata.classes import gives_features, read_labels
from vitviz.weights.model import Model
from vitviz.weights.modules.calling import call_with_border, default_forward
from vitviz.weights.modules.missing import (
    IMAGE_SIZE,
    PATCH_SIZE,
    Question,
    labels_question,
    not_stated,
    prefix_question,
)
from vitviz.weights.modules.outputs import choose_output, module_probability
from vitviz.weights.modules.preparation import module_preprocessing, normalisation_question, read_function
from vitviz.weights.modules.sizes import (
    describe_overlap,
    find_channels,
    find_image_size,
    find_patch_size,
    find_prefix,
    find_stated_patch,
    likely_sizes,
    whole_patches,
)
from vitviz.weights.modules.texts import split_texts
from vitviz.weights.modules.unwrap import find_vision_part, package_of, unwrap
from vitviz.weights.read import summarise

Value = TypeVar("Value")
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
            shown = report or (lambda progress: bar.update(progress.done - bar.n))
            return _load(module, name, shown, **stated)
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
    own = find_image_size(module)
    size = full = image_size or own
    if size and own and forward is None and (patch := patch_size or find_stated_patch(module)):
        # Of sides that are no multiple of the patch, the rest is read by none.
        size = whole_patches(size, patch)
        full = own if whole_patches(own, patch) == size else size
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
    stated_channels = len(preprocessing.mean) if isinstance(preprocessing, Preprocessing) else None
    known_channels = find_channels(module) or stated_channels
    sizes = likely_sizes(module) if size is None else [size]
    if image_size is None and size and type(preprocessing) is Preprocessing and (patch := find_stated_patch(module)):
        # First at the size of its pictures, which it may take without being asked to.
        sizes.insert(0, whole_patches((preprocessing.height, preprocessing.width), patch))

    def call(choice: tuple[Size, int]) -> tuple[torch.Tensor, Forward, Any]:
        tried, channels = choice
        zeros = torch.zeros(1, channels, *tried, dtype=dtype_of(module), device=device_of(module))
        whole = full if full and tried == size else tried
        function = default_forward(module, name, whole) if forward is None else forward
        if whole != tried:
            function = partial(call_with_border, forward=function, whole=tried, size=whole)
        return zeros, function, first_output(name, module, function, zeros)

    missing = dict[str, Question]()
    try:
        # The first convolution may be on tokens, and no picture's.
        choices = product(sizes, dict.fromkeys((known_channels or 3, 3, 1)))
        zeros, function, result = _first(call, choices)
    except (ConfigError, ImageError):
        if size is None:
            raise not_stated(name, stated, {"image_size": IMAGE_SIZE}) from None
        raise
    channels, ran_on = zeros.shape[1], (zeros.shape[2], zeros.shape[3])
    full = full if ran_on == size else None
    if size is None:
        # It is asked for with all else, which shows on images on which the module runs.
        missing["image_size"] = (IMAGE_SIZE[0], repr(ran_on[0] if ran_on[0] == ran_on[1] else ran_on))
    size = ran_on
    if reason := why_not_channels(channels):
        raise ConfigError(f"{name}: {reason}")
    classes = getattr(module, "num_classes", None) if labels is None else len(labels)
    function, output, assumptions = choose_output(module, function, result, classes)
    noise = torch.randn(zeros.shape, generator=torch.Generator().manual_seed(0)).to(zeros)
    with observation_errors(name), torch.inference_mode(False), torch.no_grad():
        replay = Replay.of(lambda pixels: primary_output(function(module, pixels.clone())), noise)
        done = itertools.count(1)
        replay.program.on_run = lambda: report(Progress(min(next(done), PASSES), PASSES))
        replay = replay.checked(noise)
    has_logits = isinstance(result, Mapping) and "logits" in result
    known_labels = () if tower is not None and labels is None else labels
    labelling = _find_labels(module, known_labels, output, has_logits, names_in_file)
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
    if (preparation := prepare(full or size, patches[0], channels)) is None:
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
        own = (*size, *patch, channels, len(class_names), probability_name, () if has_none else tokens)
        return WatchedNetwork(module, name, function, ModuleConfig(*own), replay)

    network = _first(watch, patches)
    replay.program.on_run = lambda: None
    config = network.config
    shown = (config.patch_height, config.patch_width)
    prepared, source, is_default = prepare(full or size, shown, channels) or preparation
    if is_default:
        assumptions += (f"preprocessing {summarise(prepared)}: {source}; preprocessing=… states another",)
    card = {
        "watched from": f"{type(module).__module__}.{type(module).__name__}",
        "preprocessing": source,
        "labels": label_source,
        **({"probability": f"{probability_name} ({probability_source})"} if class_names else {}),
    }
    grid = next((each for each in grids if each.patch == shown), None)
    if grid is not None:
        card["grid"] = describe_grid(grids, grid, config.depth)
        assumptions += () if patch_size else (card["grid"],)
    verified, names = network.verified(network.noise()), config.prefix
    listed = [each.rows * each.columns + each.extra for each in grids if each.patch != shown]
    assumptions += tuple(verified.describe(listed, names))
    if names and not isinstance(prefix, Sequence | None) and not verified.reads_cls:
        unproven = f"the first of {prefix!r} tokens without names; its output may read other tokens, too"
        assumptions += (f"prefix {names[0]!r}: {unproven}",)
    return Model(name, network, prepared, class_names, card, assumptions=assumptions, tower=tower)


def _first(function: Callable[[Any], Value], choices: Iterable[Any]) -> Value:
    """The result for the first choice for which there is one.

    Raises:
        ConfigError, ImageError: of the first choice.
    """
    first_error: ConfigError | ImageError | None = None
    for choice in choices:
        try:
            return function(choice)
        except (ConfigError, ImageError) as error:
            first_error = first_error or error
    assert first_error is not None, "there is a choice"
    raise first_error


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


def _find_labels(
    module: nn.Module,
    labels: Sequence[str] | None,
    output: Any,
    has_logits: bool,
    names_in_file: Mapping[str, Sequence[str]] | None,
) -> tuple[tuple[str, ...], str, bool] | None:
    """Names of the classes, their source, and whether they are assumed; no names without a classifier.

    None if the module does not state whether its outputs are classes.

    Args:
        module: that may have a classifier.
        labels: from the user.
        output: of the module for an image.
        has_logits: whether the module calls its output logits.
        names_in_file: names of classes in the file of its weights, by the path of their entry.
    """
    if labels is not None:
        return tuple(labels), "given", False
    vector, classes = primary_output(output), getattr(module, "num_classes", None)
    is_other = isinstance(output, Mapping) or classes == 0
    if not is_vector(vector) or package_of(module) == "open_clip" or (is_other and not has_logits):
        return (), "no classifier", False
    if not has_logits and classes != vector.shape[1]:
        return None
    stated = getattr(module, "pretrained_cfg", None)
    timm: Mapping[str, Any] = stated if isinstance(stated, Mapping) else {}
    if gives_features(timm, vector.shape[1]):
        return (), "features that are compared with those of texts", False
    config = {"id2label": getattr(getattr(module, "config", None), "id2label", None), "pretrained_cfg": timm}
    return read_labels(config, vector.shape[1], names_in_file)
