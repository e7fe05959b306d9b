"""Operations between layers without what they read of other tokens, so that a change of one patch stays in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def without_other_tokens(name: str, args: Sequence[Any], result: Any) -> Any:
    """:func:`without_neighbours`, and zeros for the mean of all tokens: for a :class:`Replay` of one image."""
    if name != "convolution":
        shape, count = args[0].shape, result.numel()
        # Of tokens "batch token width", or of an image "batch width row column"; a norm's mean is of one token.
        is_of_tokens = len(shape) > 2 and count == shape[-1] == result.shape[-1]
        if is_of_tokens or (len(shape) > 3 and count == shape[1]):
            return torch.zeros_like(result)
    return without_neighbours(name, args, result)


def without_neighbours(name: str, args: Sequence[Any], result: Any) -> Any:
    """The result of a convolution that reads only the pixels under its stride: for a :class:`Replay`.

    Results of other operations are returned as they are.
    """
    if name != "convolution" or args[6]:
        return result
    pixels, weight, bias, strides, paddings, dilations, *rest = args
    kernel = torch.zeros_like(weight)
    sizes = zip(weight.shape[2:], strides, paddings, dilations, strict=False)
    taps: tuple[Any, ...] = (..., *(_taps(*each) for each in sizes))
    kernel[taps] = weight[taps]
    return torch.ops.aten.convolution(pixels, kernel, bias, strides, paddings, dilations, *rest)


def _taps(size: int, stride: int, padding: int, dilation: int) -> slice:
    """The numbers of a kernel under its own stride; in the middle if the padding is added before."""
    if size <= stride:
        return slice(None)
    start = padding // dilation if padding else (size - stride) // 2
    return slice(start, start + stride)
