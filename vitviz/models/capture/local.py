"""Operations between layers without what they read of other tokens, so that a change of one patch stays in it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from vitviz.models.capture.eager_attention import Function

MEANS = frozenset({torch.mean, torch.Tensor.mean, F.adaptive_avg_pool2d})


def without_other_tokens(function: Function, args: tuple[Any, ...], result: Any) -> Any:
    """:func:`without_neighbours`, and zeros for the mean of all tokens: for :class:`Interception` of one image."""
    if function in MEANS and args and args[0].ndim > 2:
        shape, count = args[0].shape, result.numel()
        # Of tokens "batch token width", or of an image "batch width row column"; a norm's mean is of one token.
        if (count == shape[-1] == result.shape[-1]) or (args[0].ndim > 3 and count == shape[1]):
            return torch.zeros_like(result)
    return without_neighbours(function, args, result)


def without_neighbours(function: Function, args: tuple[Any, ...], result: Any) -> Any:
    """The result of a convolution that reads only the pixels under its stride: for :class:`Interception`.

    Results of other functions are returned as they are.
    """
    if function is not F.conv2d:
        return result
    pixels, weight, bias, strides, paddings, dilations, groups = args
    kernel = torch.zeros_like(weight)
    kept = [
        _taps(size, stride, 0 if isinstance(paddings, str) else padding, dilation)
        for size, stride, padding, dilation in zip(weight.shape[-2:], strides, paddings, dilations, strict=False)
    ]
    kernel[..., kept[0], kept[1]] = weight[..., kept[0], kept[1]]
    return F.conv2d(pixels, kernel, bias, strides, paddings, dilations, groups)


def _taps(size: int, stride: int, padding: int, dilation: int) -> slice:
    """The numbers of a kernel under its own stride; in the middle if the padding is added before."""
    if size <= stride:
        return slice(None)
    start = padding // dilation if padding else (size - stride) // 2
    return slice(start, start + stride)
