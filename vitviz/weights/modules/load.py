"""A module in memory as a :class:`vitviz.Model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any, TypeVar

import torch
from torch import nn

from vitviz.attention.layout import Prefix, prefix_names
from vitviz.errors.kinds import ConfigError, ImageError, VitvizError
from vitviz.errors.messages import describe
from vitviz.images.preprocessing import Preprocessing, why_not_channels
from vitviz.models.devices import usable_device
from vitviz.models.watched import ModuleFacts
from vitviz.models.watched.network import WatchedNetwork
from vitviz.models.watched.outputs import first_output, is_vector, observation_errors, primary_output
from vitviz.models.watched.replay import Replay
from vitviz.models.watched.state import check_device, check_state, device_of, dtype_of
from vitviz.weights.architectures import architecture_of_module
from vitviz.weights.formats.class_names import ClassNames
from vitviz.weights.metadata.classes import read_labels
from vitviz.weights.model import Forward, Labels, Model
from vitviz.weights.modules.calling import default_forward
from vitviz.weights.modules.missing import (
    Questions,
    image_size_not_stated,
    labels_not_stated,
    likely_patch,
    likely_sizes,
    patch_size_not_stated,
    prefix_not_stated,
)
from vitviz.weights.modules.outputs import choose_output, module_probability
from vitviz.weights.modules.preparation import as_sidecars, module_preprocessing, read_function
from vitviz.weights.modules.sizes import (
    Size,
    check_size,
    describe_overlap,
    find_channels,
    find_image_size,
    find_patch_size,
    find_prefix,
)
from vitviz.weights.modules.stages import module_stages
from vitviz.weights.modules.texts import split_texts
from vitviz.weights.modules.unwrap import find_vision_part, package_of, unwrap
from vitviz.weights.overrides import names_of_labels
from vitviz.weights.read import summarise

Error = TypeVar("Error", bound=VitvizError)
NO_SIZE = (0, 0)


def load_module(
    module: nn.Module,
    *,
    device: str | torch.device | None = None,
    preprocessing: Any = None,
    box: Any = None,
    normalisation: str | None = None,
    labels: Labels | None = None,
    image_size: int | Size | None = None,
    patch_size: int | Size | None = None,
    prefix: Prefix | None = None,
    forward: Forward | None = None,
    tokenizer: Any = None,
    probability: str | None = None,
    name: str | None = None,
    names_in_file: Mapping[str, ClassNames] | None = None,
) -> Model:
    """A module as a model.

    The module's attention is watched during its own forward pass. The module is not changed.

    The arguments are those of :func:`vitviz.load`; ``name`` replaces the module's own name, and ``names_in_file`` are
    the names of classes in the file of its weights.

    Raises:
        ConfigError: the module does not state something necessary; it is in a state in which it cannot be watched; or
            its attention cannot be watched completely and exactly.
        CheckpointError: its preprocessing cannot be done exactly.
        ImageError: it cannot run on an image of its size.
    """
    module = unwrap(module)
    name = name or module_name(module)
    module, tower, assumed = split_texts(module, tokenizer, preprocessing)
    try:
        check_state(module)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if device is not None:
        check_device(module, usable_device(device))
    size = check_size("image_size", image_size) or find_image_size(module)
    stated_patch = check_size("patch_size", patch_size)
    tokens = find_prefix(module) if prefix is None else prefix_names(prefix)
    stated: dict[str, Any] = {"image_size": image_size, "patch_size": patch_size, "prefix": prefix, "labels": labels}
    stated |= {"preprocessing": preprocessing, "normalisation": normalisation, "forward": forward}
    questions = Questions(name, stated)
    if callable(preprocessing):
        preprocessing = read_function(preprocessing, box, normalisation)
    elif box is not None:
        raise ConfigError(f"{name}: box: of a function alone; expected preprocessing = that function, or no box")
    stated_channels = len(preprocessing.mean) if isinstance(preprocessing, Preprocessing) else None
    known_channels = find_channels(module) or stated_channels
    if size is None:
        size = _likely_size(module, forward, stated_patch or find_patch_size(module, NO_SIZE), known_channels or 3)
        questions.add(image_size_not_stated(size))
    first_refusal: ConfigError | ImageError | None = None
    for channels in (3, 1) if known_channels is None else (known_channels,):
        zeros = torch.zeros(1, channels, *(size or NO_SIZE), dtype=dtype_of(module), device=device_of(module))
        try:
            forward_function = default_forward(module, name, size or NO_SIZE) if forward is None else forward
            result = None if size is None else first_output(name, module, forward_function, zeros)
        except (ConfigError, ImageError) as error:
            first_refusal = first_refusal or error
            continue
        break
    else:
        assert first_refusal is not None, "there is a number of channels"
        raise _with_architecture(module, name, first_refusal)
    if reason := why_not_channels(channels):
        raise ConfigError(f"{name}: {reason}")
    classes = getattr(module, "num_classes", None) if labels is None else len(_check_labels(labels))
    forward_function, output, assumptions = choose_output(module, forward_function, result, classes)
    assumptions += assumed
    has_logits = isinstance(result, Mapping) and "logits" in result
    prepare = partial(module_preprocessing, module, preprocessing, normalisation)
    known_labels = () if tower is not None and labels is None else labels
    labelling = questions.ask(lambda: _find_labels(module, known_labels, output, has_logits, names_in_file))
    if size is None:
        # It does not run on images of any size that was tried.
        if prefix is None and not tokens:
            questions.add(prefix_not_stated(None))
        if not stated_patch and find_patch_size(module, NO_SIZE) is None:
            questions.add(patch_size_not_stated(None))
        questions.ask(partial(prepare, (224, 224), (16, 16), channels))
        raise _with_architecture(module, name, questions.error())
    noise = torch.randn(zeros.shape, generator=torch.Generator().manual_seed(0)).to(zeros)
    with observation_errors(name), torch.inference_mode(False), torch.no_grad():
        replay = Replay.of(lambda pixels: primary_output(forward_function(module, pixels.clone())), noise)
        stages = module_stages(replay, noise, len(tokens or ()))
    found_patch = stated_patch or find_patch_size(module, size)
    if found_patch is None and not stages.grids:
        found_patch = None if stages.tokens is None else likely_patch(stages.tokens, size)
        questions.add(patch_size_not_stated(found_patch))
    patches = [found_patch] if stated_patch or not stages.grids else stages.patches
    extra = None if stages.grids or found_patch is None else stages.extra(found_patch)
    # Of more tokens than patches, the patch size may be wrong.
    is_short = extra is not None and 2 * extra < (stages.tokens or 0)
    if prefix is None and (tokens is None or (is_short and len(tokens) < (extra or 0))):
        questions.add(prefix_not_stated(extra))
    function, function_source = "softmax", ""
    class_names, label_source, labels_assumed = labelling or ((), "", False)
    assumptions += (f"labels {label_source}",) * labels_assumed
    if class_names and not questions:
        function, function_source, is_assumed = module_probability(
            module, probability, primary_output(output), replay, len(class_names)
        )
        assumptions += (f"probability {function}: {function_source}",) * is_assumed
    first_error: ConfigError | None = None
    for patch in patches:
        preparation = questions.ask(partial(prepare, size, patch or size, channels))
        if patch is None or preparation is None or labelling is None or tokens is None or questions:
            raise _with_architecture(module, name, questions.error())
        prepared, source, is_default = preparation
        # A class token that is added after the layers takes no part in their attention.
        prefix_tokens = () if stages.extra(patch) == 0 and prefix is None else tokens
        classes = len(class_names)
        facts = ModuleFacts(name, size, patch, channels, prefix_tokens, classes, forward_function, function)
        try:
            network = WatchedNetwork(module, facts, replay)
        except ConfigError as error:
            first_error = first_error or error
            continue
        break
    else:
        assert first_error is not None, "there is a patch size"
        raise _with_architecture(module, name, first_error)
    _check_own_size(network, prepared, name)
    if is_default:
        assumptions += (f"preprocessing {summarise(prepared)}: {source}; preprocessing=… states another",)
    card = {
        "watched from": f"{type(module).__module__}.{type(module).__name__}",
        "preprocessing": source,
        "labels": label_source,
        **({"probability": f"{function} ({function_source})"} if class_names else {}),
    }
    if stages.grids and patch in stages.patches:
        card["grid"] = stages.describe_grid(patch, network.config.depth)
        assumptions += () if stated_patch else (card["grid"],)
    verified = network.verified_at_own_size
    others, pooling = verified.describe_others(stages.tokens_beside(patch)), verified.describe_pooling(prefix_tokens)
    assumptions += tuple(filter(None, (others, pooling, verified.describe_unseen(), *verified.remarks)))
    if prefix_tokens and not isinstance(prefix, Sequence | None) and not verified.reads_cls:
        unproven = f"the first of {prefix!r} tokens without names; its output may read other tokens, too"
        assumptions += (f"prefix {prefix_tokens[0]!r}: {unproven}",)
    return Model(name, network, prepared, class_names, card, assumptions=assumptions, tower=tower)


def _check_own_size(network: WatchedNetwork, preprocessing: Preprocessing, name: str) -> None:
    """Check that a network accepts the inputs that its preprocessing makes.

    Raises:
        ConfigError: it does not.
    """
    config = network.config
    size = preprocessing.whole_patches(config.patch_height, config.patch_width)
    if size == (config.image_height, config.image_width):
        return
    try:
        network.encode(torch.zeros(1, config.channels, *size, dtype=torch.float32, device=network.device))
    except (ConfigError, ImageError) as error:
        found = f"preprocessing makes inputs of {preprocessing.height}×{preprocessing.width} pixels"
        expected = f"expected {config.image_height}×{config.image_width}"
        raise ConfigError(f"{name}: {found}, which the module does not accept; {expected}: {error}") from None


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


def _likely_size(module: nn.Module, forward: Forward | None, patch: Size | None, channels: int) -> Size | None:
    """The first of the likely image sizes on which the module runs; None if there is none."""
    for size in likely_sizes(module, patch):
        zeros = torch.zeros(1, channels, *size, dtype=dtype_of(module), device=device_of(module))
        try:
            first_output("", module, forward or default_forward(module, "", size), zeros)
        except (ConfigError, ImageError):
            continue
        return size
    return None


def _with_architecture(module: nn.Module, name: str, error: Error) -> Error:
    """The error, with what is known about the module: its architecture, overlapping patches, its part for pictures."""
    architecture, part, message = architecture_of_module(module), find_vision_part(module), str(error)
    if architecture is not None:
        message = f"{name} is {architecture.sentence}: {message.removeprefix(name).lstrip(': ')}"
    hint = f"; its part for pictures opens alone: vitviz.load(module.{part})" if part else describe_overlap(module)
    return type(error)(message + hint)


def _find_labels(
    module: nn.Module,
    labels: Labels | None,
    output: Any,
    has_logits: bool,
    names_in_file: Mapping[str, ClassNames] | None,
) -> tuple[tuple[str, ...], str, bool]:
    """Names of the classes, their source, and whether they are assumed; no names without a classifier.

    Args:
        module: that may have a classifier.
        labels: from the user.
        output: of the module for an image; None if it is unknown.
        has_logits: whether the module calls its output logits.
        names_in_file: names of classes in the file of its weights, by the path of their entry.

    Raises:
        NotStated: the module does not state whether its outputs are classes.
        ConfigError: the user's labels are not names.
    """
    if labels is not None:
        return _check_labels(labels), "given", False
    if output is None:
        raise labels_not_stated(None)
    vector, package = primary_output(output), package_of(module)
    if not is_vector(vector) or package == "open_clip":
        return (), "no classifier", False
    width, stated_classes = vector.shape[1], getattr(module, "num_classes", None)
    if isinstance(output, Mapping) and not has_logits:
        return (), "no classifier", False
    if has_logits:
        names = getattr(getattr(module, "config", None), "id2label", None) or {}
        texts = {str(number): text for number, text in names.items()}
        return read_labels(as_sidecars(config={"id2label": texts}), width, names_in_file)
    if stated_classes == 0:
        return (), "no classifier", False
    if stated_classes != width:
        raise labels_not_stated(width)
    pretrained = getattr(module, "pretrained_cfg", None)
    stated_names = pretrained.get("label_names") if isinstance(pretrained, Mapping) else None
    config = {} if stated_names is None else {"pretrained_cfg": {"label_names": list(stated_names)}}
    return read_labels(as_sidecars(config=config), width, names_in_file)


def _check_labels(labels: Any) -> tuple[str, ...]:
    names = names_of_labels(labels)
    if names is None:
        expected = "expected a name for each class from 0 on, or () where the outputs are no classes"
        raise ConfigError(f"labels = {describe(labels)}: {expected}")
    return names
