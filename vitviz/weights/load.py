"""Opens every kind of model: a checkpoint by name, hub id or path, or a module in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import torch
from torch import nn

from vitviz.attention.layout import Prefix
from vitviz.attention.precision import Precision, plain_torch
from vitviz.errors.arguments import instance, named_arguments
from vitviz.errors.kinds import CheckpointError, ConfigError
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.activations import Activation
from vitviz.models.config import FinalNorm
from vitviz.models.pooling import PoolingName
from vitviz.models.positions import PositionRule
from vitviz.models.probability import Probability
from vitviz.models.vit import VisionTransformer
from vitviz.models.watched.outputs import Forward
from vitviz.weights.bundled import BUNDLED
from vitviz.weights.language_model import LanguageModel
from vitviz.weights.metadata.normalisations import Normalisation
from vitviz.weights.model import EngineName, Labels, Model
from vitviz.weights.overrides import Stated

Edges = tuple[float, float, float, float]
"""Left, top, right and lower edge in pixels of a picture."""
Box = Edges | Callable[[int, int], Edges]
# Facts that a user may state of a checkpoint and of a module.
SHARED = ("normalisation", "image_size", "patch_size", "probability", "labels")


@overload
def load(
    source: nn.Module, *, processor: Any, tokenizer: Any = None, device: str | torch.device | None = None
) -> LanguageModel: ...


@overload
def load(
    source: str | os.PathLike[str] | nn.Module = BUNDLED[0],
    *,
    family: str | None = None,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    report: Callable[[Any], None] | None = None,
    ignore: Sequence[str] = (),
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
    box: Box | None = None,
    labels: Labels | None = None,
    prefix: Prefix | None = None,
    forward: Forward | None = None,
    tokenizer: Any = None,
    engine: EngineName | None = None,
) -> Model: ...


@named_arguments(CheckpointError)
@torch.inference_mode(False)
@plain_torch()
def load(
    source: str | os.PathLike[str] | nn.Module = BUNDLED[0],
    *,
    family: str | None = None,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    report: Callable[[Any], None] | None = None,
    ignore: Sequence[str] = (),
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
    box: Box | None = None,
    labels: Labels | None = None,
    prefix: Prefix | None = None,
    forward: Forward | None = None,
    tokenizer: Any = None,
    engine: EngineName | None = None,
    processor: Any = None,
) -> Model | LanguageModel:
    """Open a checkpoint, a model of timm, transformers or open_clip, or a module in memory.

    A checkpoint in one of vitviz's own layouts opens in vitviz's own Vision Transformer, without another package. Any
    other one is built by the package that its files or its name say, if that is installed, and watched as a module is.
    Code that lies beside a checkpoint is never run.

    The weights are frozen, since a loaded model is for analysis; training builds its own. If the file does not state
    something that changes numbers, an error asks for it, or the value of published checkpoints of the same shapes is
    used and listed in ``model.assumptions``.

    A module (of timm, transformers, torchvision, open_clip or your own class) is not changed. Its attention is watched
    during its own forward pass and checked against what the module computes. If the module does not state something, an
    error asks for it by name. For a module, only ``device``, ``report``, ``normalisation``, ``image_size``,
    ``patch_size``, ``probability``, and ``preprocessing`` to ``engine`` apply. A model that a package builds
    states ``heads``, ``activation``, ``pooling``, ``final_norm``, ``norm_epsilon``, ``position_rule`` and precision.

    Args:
        source: the name of a bundled or published checkpoint (``"dino_vits16"``; ``vitviz models`` lists them), a hub
            id (``"hf:facebook/dinov2-small"``, optionally followed by ``@revision``), a name of timm or of open_clip
            with its weights (``"timm:vit_small_patch16_dinov3.lvd1689m"``, ``"open_clip:ViT-B-32/laion2b_s34b_b79k"``),
            a path, or a module in evaluation mode. The path is that of a file, of a folder with a file and its
            configuration, or of one with snapshots of a training run (it opens the last, :func:`open_snapshot` the
            others).
        family: name of one of vitviz's own layouts, if the file's keys do not determine it.
        device: where the model runs, such as ``"cuda"``; images are moved to it. The default is the CPU, or for a
            module the device that it is on.
        precision: of its layers: ``"float32"``, the default, ``"bfloat16"`` or ``"float16"``. A module keeps its own.
        report: receives the :class:`vitviz.progress.DownloadProgress` of a download, and the
            :class:`vitviz.progress.Progress` of watching a module or a package's model, in place of bars.
        ignore: patterns of keys to leave out: ``["head.*"]``.
        architecture: timm's name of the architecture of a file without a configuration, such as
            ``"vit_base_patch16_224"``: it implies everything that the weights do not state. If vitviz has no network
            for it, timm builds the model and reads the file.
        heads: attention heads of a layer.
        activation: of the MLP, a name in :data:`vitviz.models.activations.ACTIVATIONS`.
        pooling: input of the classifier, a name in :data:`vitviz.models.pooling.POOLINGS`.
        final_norm: ``"before pooling"``, ``"after pooling"`` or ``"none"``.
        norm_epsilon: added to the variance in every layer norm.
        position_rule: how positions are resized to another grid, a name in
            :data:`vitviz.models.positions.POSITION_RULES`.
        normalisation: how pixels are standardised: ``"imagenet"``, ``"half"``, ``"clip"`` or ``"none"``. Beside a
            function as ``preprocessing``, how its inputs are undone to be shown.
        image_size, patch_size: in pixels, one number or height and width.
        probability: what makes probabilities of the outputs, a name in
            :data:`vitviz.models.probability.PROBABILITIES`: ``"softmax"``, ``"sigmoid"`` for several labels,
            ``"identity"`` for outputs that are probabilities, ``"none"`` for a regression.
        verify: also build the model of the package that the files beside the checkpoint name, and refuse vitviz's own
            network if a number differs; see :func:`vitviz.weights.verify.verify`.
        preprocessing: of images for a module: a :class:`vitviz.Preprocessing`; a transform of torchvision, timm or
            open_clip, or an image processor of transformers, which is read by its fields; timm's ``data_config``; or
            any other function from a PIL image (albumentations' transforms: ``image=`` an array) to the input
            ``"channel height width"``, which is called for every picture, at its own resolution and fit.
        box: what of a picture the input of such a function shows: left, top, right and lower edge in pixels of the
            picture, or a function from its width and height to these. Without it, maps are drawn on the input.
        labels: names of the classes, from 0 on, in place of those that the files state; of a module ``()`` if its
            outputs are features.
        prefix: names of a module's tokens that are not patches, in their order: ``["cls", "register 1"]``; or their
            number, for the CLS token and then registers.
        forward: calls a module: takes it and pixels ``"batch channel height width"``, and returns logits
            ``"batch class"``, or features ``"batch feature"``.
        tokenizer: of a module of pictures and texts (transformers' CLIP and SigLIP, open_clip), for ``model.text``; by
            default that of the processor in ``preprocessing``, or open_clip's own.
        engine: of a checkpoint: ``"own"`` allows only vitviz's own network, ``"module"`` watches the model of timm,
            transformers or open_clip that the files beside it name. The default is that model only if vitviz has no
            network for the layout. A module is watched; without an engine, a :class:`vitviz.VisionTransformer` is
            not, and takes ``preprocessing`` and ``labels`` alone. ``model.engine`` tells which it is.
        processor: of a generative vision-language model of transformers in memory, as ``AutoProcessor`` gives it: the
            result is a model for :func:`vitviz.ask`. Beside it, only ``tokenizer`` and ``device`` apply.

    Raises:
        CheckpointError: there is no such checkpoint, it cannot be downloaded, or it cannot be loaded exactly; or
            ``verify`` finds a difference, or nothing to compare with.
        ConfigError: there is no such precision, or no such device on this machine; or the module is in a state in
            which it cannot be watched, does not state something necessary, or its attention cannot be watched
            exactly.
        ImageError: the module cannot run on an image of its size, or ``preprocessing`` fails.
        LimitError: its network takes more memory than is free.

    >>> vitviz.load()
    Model('vitviz-photos': 8 layers × 6 heads, width 384, 112×112 pixels in patches of 8, 108 classes, on cpu...)
    """
    facts: dict[str, Any] = {
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
        "labels": labels,
    }
    of_modules: dict[str, Any] = {
        "preprocessing": preprocessing,
        "box": box,
        "prefix": prefix,
        "forward": forward,
        "tokenizer": tokenizer,
    }
    if processor is not None:
        if not isinstance(source, nn.Module):
            raise ConfigError("processor: of a generative module in memory alone; expected that of from_pretrained")
        _refuse({**facts, **of_modules, "tokenizer": None}, "of a model that is analysed; of one that writes, none")
        return LanguageModel.of(source, processor, tokenizer, device)
    if isinstance(source, nn.Module):
        shared = {name: facts.pop(name) for name in SHARED}
        _refuse(
            {**facts, "family": family, "precision": precision, "ignore": ignore or None, "verify": verify or None},
            f"a module says itself; expected device, report, {', '.join([*shared, *of_modules])}, engine",
        )
        from vitviz.weights.modules.as_model import load_module

        if isinstance(source, VisionTransformer) and engine is None:
            _refuse(
                {**shared, **of_modules, "device": device, "preprocessing": None, "labels": None},
                "a network of vitviz's own says it itself; expected preprocessing and labels alone",
            )
            return Model(
                type(source).__name__,
                source,
                instance("preprocessing", preprocessing, Preprocessing, "model.preprocessing"),
                Stated.of(labels=labels).facts.get("labels", ()),
            )
        if engine not in (None, "module"):
            raise ConfigError(
                f"engine {engine!r}: a module is watched; the file of its state_dict() opens as a checkpoint"
            )
        return load_module(source, device=device, report=report, **Stated.of(**shared).facts, **of_modules)
    _refuse(of_modules, "of a module in memory alone; a checkpoint says it itself")
    # Not before a checkpoint is opened: families and formats are a good part of what `import vitviz` would take.
    from vitviz.weights.checkpoint_sources import read_source

    return read_source(
        source,
        Stated.of(family=family, ignore=ignore, **facts),
        report=report,
        verify=verify,
        device=device,
        precision=precision,
        engine=engine,
    ).model


def _refuse(arguments: Mapping[str, Any], reason: str) -> None:
    """Refuse arguments that do not apply to the kind of source."""
    names = [name for name, value in arguments.items() if value is not None]
    if names:
        raise ConfigError(f"{', '.join(names)}: {reason}")
