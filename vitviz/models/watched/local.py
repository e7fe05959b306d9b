"""Operations between layers without what they read of other tokens, so that a change of one patch stays in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vitviz.models.watched.program import Hook, Program, Values


def local_hooks(program: Program) -> dict[int, Hook]:
    """Hooks by which convolutions read only the pixels under their stride, and means of all tokens are zero."""
    hooks = {"convolution": _under_stride, "mean": _without_tokens, "_adaptive_avg_pool2d": _without_tokens}
    return {number: hooks[step.name] for number, step in enumerate(program.steps) if step.name in hooks}


def _without_tokens(number: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, values: Values) -> Any:
    """Zeros for a mean of all tokens; the mean of one token's numbers, as in a norm, as it is."""
    shape, count = args[0].shape, result.numel()
    # Of tokens "batch token width", or of an image "batch width row column".
    is_of_tokens = len(shape) > 2 and count == shape[-1] == result.shape[-1]
    return torch.zeros_like(result) if is_of_tokens or (len(shape) > 3 and count == shape[1]) else result


def _under_stride(number: int, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, values: Values) -> Any:
    """The result of a convolution whose kernel has only the numbers under its stride."""
    pixels, weight, bias, strides, paddings, dilations, is_transposed, *rest = args
    if is_transposed:
        return result
    kernel = torch.zeros_like(weight)
    sizes = zip(weight.shape[2:], strides, paddings, dilations, strict=False)
    taps: tuple[Any, ...] = (..., *(_taps(*each) for each in sizes))
    kernel[taps] = weight[taps]
    return torch.ops.aten.convolution(pixels, kernel, bias, strides, paddings, dilations, is_transposed, *rest)


def _taps(size: int, stride: int, padding: int, dilation: int) -> slice:
    """The numbers of a kernel under its own stride; in the middle if the padding is added before."""
    if size <= stride:
        return slice(None)
    start = padding // dilation if padding else (size - stride) // 2
    return slice(start, start + stride)
