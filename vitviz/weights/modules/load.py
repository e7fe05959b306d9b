"""A module in memory as a :class:`vitviz.Model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import torch
from torch import nn

from vitviz.errors.arguments import word
from vitviz.errors.kinds import ConfigError, ImageError, VitvizError
from vitviz.errors.messages import describe
from vitviz.models.capture import CapturedNetwork, ModuleFacts
from vitviz.models.capture.outputs import first_output, is_vector, primary_output
from vitviz.models.capture.state import check_device, check_state, device_of, dtype_of
from vitviz.models.devices import usable_device
from vitviz.weights.architectures import architecture_of_module
from vitviz.weights.metadata.classes import read_labels
from vitviz.weights.model import Model
from vitviz.weights.modules.calling import Forward, default_forward
from vitviz.weights.modules.own_engine import ENGINES, with_engine
from vitviz.weights.modules.preparation import module_preprocessing, sidecars
from vitviz.weights.modules.sizes import (
    Size,
    checked_prefix,
    checked_size,
    find_channels,
    find_depth,
    find_image_size,
    find_patch_size,
    find_prefix,
)
from vitviz.weights.modules.stages import module_stages
from vitviz.weights.modules.unwrap import package_of, unwrapped

Labels = Sequence[str] | Mapping[int, str]
Refusal = TypeVar("Refusal", bound=VitvizError)


def load_module(
    module: nn.Module,
    *,
    device: str | torch.device | None = None,
    preprocessing: Any = None,
    normalisation: str | None = None,
    labels: Labels | None = None,
    image_size: int | Size | None = None,
    patch_size: int | Size | None = None,
    prefix: Sequence[str] | None = None,
    forward: Forward | None = None,
    engine: str | None = None,
    name: str | None = None,
) -> Model:
    """A module as a model: by a copy of its weights in vitviz's own network where both give the same numbers, else by
    capturing its attention while its own forward pass runs.

    Arguments as those of :func:`vitviz.load`; ``name`` is what the model is called, where not as the module says. The
    module stays as it is.

    Raises:
        ConfigError: something has to be known that the module does not say; it is in a state in which it cannot be
            captured; its attention cannot be seen whole, or differs from what is captured.
        CheckpointError: what it says of its images cannot be done exactly.
        ImageError: it cannot be run on an image of its size.
    """
    if engine is not None:
        word("engine", engine, ENGINES, ConfigError)
    module = unwrapped(module)
    name = name or module_name(module)
    try:
        check_state(module)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if device is not None:
        check_device(module, usable_device(device))
    size = checked_size("image_size", image_size) or find_image_size(module)
    if size is None:
        raise _unknown(module, name, "image_size", "the height and width of its images in pixels, such as 224")
    asked_patch = checked_size("patch_size", patch_size)
    tokens = find_prefix(module) if prefix is None else checked_prefix(prefix)
    if tokens is None:
        what = "the names of its tokens that are no patches, such as ['cls', 'register 1']"
        raise _unknown(module, name, "prefix", what)
    channels = find_channels(module)
    noise = torch.zeros(1, channels, *size, dtype=dtype_of(module), device=device_of(module))
    try:
        run = default_forward(module, name, size) if forward is None else forward
        returned = first_output(name, module, run, noise)
    except (ConfigError, ImageError) as error:
        raise _with_architecture(module, name, error) from None
    stages = module_stages(module, run, noise, len(tokens))
    found = [asked_patch or find_patch_size(module, size)] if asked_patch or not stages.grids else stages.patches
    class_names, origin, assumed = _labels(module, name, labels, returned)
    refused: ConfigError | None = None
    for patch in found:
        if patch is None:
            what = "the height and width of its patches in pixels, such as 16"
            raise _unknown(module, name, "patch_size", what)
        prepared, source = module_preprocessing(module, preprocessing, normalisation, size, patch, channels)
        # A class token that joins behind the layers is none of theirs.
        own_tokens = () if stages.extra(patch) == 0 and prefix is None else tokens
        depth = None if stages.grids else find_depth(module)
        facts = ModuleFacts(name, size, patch, channels, own_tokens, len(class_names), run, depth)
        try:
            network = CapturedNetwork(module, facts)
        except ConfigError as error:
            refused = refused or error
            continue
        break
    else:
        assert refused is not None, "there is a patch size"
        raise _with_architecture(module, name, refused)
    card = {
        "captured from": f"{type(module).__module__}.{type(module).__name__}",
        "preprocessing": source,
        "labels": origin,
    }
    assumptions: tuple[str, ...] = (f"labels {origin}",) if assumed else ()
    if stages.grids and patch in stages.patches:
        card["grid"] = stages.chosen(patch, network.config.depth)
        assumptions += () if asked_patch else (card["grid"],)
    model = Model(name, network, prepared, class_names, card, assumptions=assumptions)
    return with_engine(module, model, engine, forward is not None)


def module_name(module: nn.Module) -> str:
    """timm's name of its architecture, the checkpoint that transformers opened, or the name of its class."""
    pretrained = getattr(module, "pretrained_cfg", None)
    architecture = pretrained.get("architecture") if isinstance(pretrained, Mapping) else None
    opened = getattr(getattr(module, "config", None), "name_or_path", None)
    found = next((name for name in (architecture, opened) if isinstance(name, str) and name), type(module).__name__)
    # A hub id has one slash; what has more is the path of a folder.
    return found if found.count("/") <= 1 else PurePath(found).name


def _unknown(module: nn.Module, name: str, argument: str, what: str) -> ConfigError:
    error = ConfigError(f"{name}: the module does not say its {argument}; expected {argument} = {what}")
    return _with_architecture(module, name, error)


def _with_architecture(module: nn.Module, name: str, error: Refusal) -> Refusal:
    """The error with what the module is, where its architecture is known not to be a plain Vision Transformer."""
    known = architecture_of_module(module)
    if known is None:
        return error
    return type(error)(f"{name} is {known.sentence}: {str(error).removeprefix(name).lstrip(': ')}")


def _labels(module: nn.Module, name: str, labels: Labels | None, returned: Any) -> tuple[tuple[str, ...], str, bool]:
    """Names of the classes, where they come from, and whether they are assumed; none of a module without a classifier.

    Args:
        module: whose output it is.
        name: what messages call it.
        labels: that the user gives.
        returned: by the module, for an image.

    Raises:
        ConfigError: the module does not say whether its outputs are classes, or the labels are none.
    """
    if labels is not None:
        return _given_labels(labels), "given", False
    output, package = primary_output(returned), package_of(module)
    if not is_vector(output) or package == "open_clip":
        return (), "no classifier", False
    width, stated = output.shape[1], getattr(module, "num_classes", None)
    if isinstance(returned, Mapping):
        if "logits" not in returned:
            return (), "no classifier", False
        names = getattr(getattr(module, "config", None), "id2label", None) or {}
        texts = {str(number): text for number, text in names.items()}
        return read_labels(sidecars(config={"id2label": texts}), width)
    if stated == 0:
        return (), "no classifier", False
    if stated != width:
        what = f"{width} names where its {width} outputs are classes, or () where they are features"
        raise ConfigError(f"{name}: the module does not say its labels; expected labels = {what}")
    pretrained = getattr(module, "pretrained_cfg", None)
    stated_names = pretrained.get("label_names") if isinstance(pretrained, Mapping) else None
    config = {} if stated_names is None else {"pretrained_cfg": {"label_names": list(stated_names)}}
    return read_labels(sidecars(config=config), width)


def _given_labels(labels: Any) -> tuple[str, ...]:
    listed = [labels.get(number) for number in range(len(labels))] if isinstance(labels, Mapping) else labels
    if isinstance(listed, str) or not isinstance(listed, Sequence) or not all(isinstance(e, str) for e in listed):
        expected = "expected a name for each class from 0 on, or () where the outputs are no classes"
        raise ConfigError(f"labels = {describe(labels)}: {expected}")
    return tuple(listed)
