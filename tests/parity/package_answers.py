"""Output and attention of a package's own forward pass, by its hooks and options: what vitviz is held to."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import nn

from tests.parity.reference_models import ReferenceModel
from vitviz.models.network import Network, NetworkConfig
from vitviz.models.pooling import POOLINGS
from vitviz.models.vit import VisionTransformer
from vitviz.models.watched.outputs import primary_output
from vitviz.weights.modules.unwrap import package_of

OUTPUTS = ("logits", "image_embeds", "pooler_output")


@dataclass(frozen=True, eq=False)
class Answer:
    """The result of a package's model for pixels.

    Args:
        output: logits or features, ``"batch feature"``; None for a model that returns only its last tokens.
        attention: the weights of every layer, ``"batch head query key"``; empty if the package does not return them.
        tokens: of the last layer, ``"batch token width"``, for a model without output.
    """

    output: torch.Tensor | None
    attention: tuple[torch.Tensor, ...]
    tokens: torch.Tensor | None = None


def answer_of(reference: ReferenceModel, pixels: torch.Tensor) -> Answer:
    """The package's own forward pass of ``"batch channel height width"``."""
    if package_of(reference.module) == "transformers":
        return of_transformers(reference.module, pixels, reference.projection)
    return (of_open_clip if package_of(reference.module) == "open_clip" else of_timm)(reference.module, pixels)


def expected_output(answer: Answer, network: Network, pixels: torch.Tensor) -> torch.Tensor:
    """The package's output; if it has none, its tokens, with vitviz's pooling where its own network has one."""
    if answer.output is not None:
        return answer.output
    assert answer.tokens is not None, "the package's model gives neither an output nor tokens to compare"
    pool = POOLINGS[network.config.pooling].pool if isinstance(network, VisionTransformer) else None
    return answer.tokens if pool is None else pool(answer.tokens, network.config.layout(*pixels.shape[-2:]))


def of_timm(model: Any, pixels: torch.Tensor) -> Answer:
    blocks = getattr(model, "blocks", None)
    attentions = [
        module for module in model.modules() if hasattr(module, "attn_drop") and hasattr(module, "fused_attn")
    ]
    if blocks is not None:
        block_attentions = [getattr(block, "attn", None) for block in blocks]
        attentions = [attention for attention in block_attentions if hasattr(attention, "attn_drop")]
    fused_flags = [getattr(attention, "fused_attn", None) for attention in attentions]
    for attention in attentions:
        attention.fused_attn = False
    try:
        with collect_outputs([attention.attn_drop for attention in attentions], _weights) as weights:
            output = model(pixels)
    finally:
        for attention, flag in zip(attentions, fused_flags, strict=True):
            attention.fused_attn = flag
    is_complete = len(weights) == len(attentions if blocks is None else blocks)
    # In training only, DeiT's distilled models return the outputs of both heads.
    return Answer(output, tuple(weights) if is_complete else ())


def _weights(output: torch.Tensor) -> torch.Tensor | None:
    return output if output.ndim == 4 and output.shape[-1] == output.shape[-2] else None


def of_open_clip(visual: Any, pixels: torch.Tensor) -> Answer:
    if not hasattr(visual, "transformer"):
        return Answer(visual(pixels), of_timm(visual.trunk, pixels).attention)
    blocks = list(visual.transformer.resblocks)
    torch_attention = [block.attn for block in blocks if isinstance(block.attn, nn.MultiheadAttention)]
    hooks = [attention.register_forward_pre_hook(ask_for_weights, with_kwargs=True) for attention in torch_attention]
    own_dropouts = [block.attn.attn_drop for block in blocks if hasattr(block.attn, "attn_drop")]
    try:
        with (
            collect_outputs(torch_attention, lambda output: output[1]) as weights,
            collect_outputs(own_dropouts, _by_head(len(pixels))) as own_weights,
        ):
            output = visual(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    output = output[0] if isinstance(output, tuple) else output
    matrices = weights or own_weights
    return Answer(output, tuple(matrices) if len(matrices) == len(blocks) else ())


def ask_for_weights(_: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any]:
    return arguments, {**keywords, "need_weights": True, "average_attn_weights": False}


def _by_head(images: int) -> Any:
    """A function that separates images and heads in weights of open_clip's own attention."""

    def pick(output: torch.Tensor) -> torch.Tensor:
        return output if output.ndim == 4 else output.unflatten(0, (images, -1))

    return pick


def of_transformers(tower: Any, pixels: torch.Tensor, projection: nn.Module | None = None) -> Answer:
    """The answer of a model or vision tower with eager attention, and a projection behind it."""
    config = getattr(tower.config, "vision_config", tower.config)
    inputs = inputs_of(config, pixels)
    size = getattr(config, "image_size", None)
    trained = (size, size) if isinstance(size, int) else size
    parts = (tower, getattr(tower, "vision_model", tower))
    is_interpolating = any("interpolate_pos_encoding" in inspect.signature(part.forward).parameters for part in parts)
    if is_interpolating and trained != tuple(pixels.shape[-2:]):
        inputs["interpolate_pos_encoding"] = True
    result = tower(**inputs, output_attentions=True)
    output = next((result[name] for name in OUTPUTS if result.get(name) is not None), None)
    if output is not None and projection is not None:
        output = projection(output)
    tokens = result.get("last_hidden_state")
    if output is None and tokens is None:
        # The output of another head, such as a depth map.
        tokens = primary_output(result)
    weights = tuple(result.attentions) if result.get("attentions") and result.attentions[0] is not None else ()
    return Answer(output, weights, tokens if output is None else None)


def inputs_of(config: Any, pixels: torch.Tensor) -> dict[str, Any]:
    """Pixels as a model takes them."""
    if config.model_type.startswith("siglip2"):
        rows, columns = (side // config.patch_size for side in pixels.shape[-2:])
        order = "batch channel (row height) (column width) -> batch (row column) (height width channel)"
        return {
            "pixel_values": rearrange(pixels, order, row=rows, column=columns),
            "pixel_attention_mask": torch.ones(len(pixels), rows * columns, dtype=torch.long),
            "spatial_shapes": torch.tensor([[rows, columns]] * len(pixels)),
        }
    if config.model_type == "vit_mae":
        # MAE orders patches by this noise; ascending noise keeps their order.
        patch = config.patch_size
        height, width = (patch, patch) if isinstance(patch, int) else patch
        patches = (pixels.shape[-2] // height) * (pixels.shape[-1] // width)
        return {"pixel_values": pixels, "noise": torch.arange(patches).float().expand(len(pixels), -1)}
    return {"pixel_values": pixels}


@contextmanager
def collect_outputs(modules: list[Any], pick: Callable[[Any], torch.Tensor | None]) -> Iterator[list[torch.Tensor]]:
    """Collect what ``pick`` returns for each output of the modules while they run, without None."""
    outputs: list[torch.Tensor] = []

    def collect(module: nn.Module, arguments: Any, output: Any) -> None:
        picked = pick(output)
        if picked is not None:
            outputs.append(picked)

    hooks = [module.register_forward_hook(collect) for module in modules]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def whole_patches(pixels: torch.Tensor, config: NetworkConfig) -> torch.Tensor:
    """The pixels without the last rows and columns that fill no patch, which a convolution ignores."""
    height, width = pixels.shape[-2:]
    rows, columns = height // config.patch_height, width // config.patch_width
    return pixels[..., : rows * config.patch_height, : columns * config.patch_width]
