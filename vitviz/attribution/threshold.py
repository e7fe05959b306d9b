"""Sets the lowest entries of a layer's fused attention to zero, exactly the share that a ratio names."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from vitviz.attention.trace import Chunks


def discard(matrix: torch.Tensor, ratio: float, as_topk: bool = False, keep_cls_to_cls: bool = False) -> Chunks:
    """A fused matrix as one chunk ``"query key"``, its lowest entries set to zero.

    Args:
        matrix: ``"query key"``, without negative entries, or several, ``"image query key"``; not changed.
        ratio: share of the entries of each to discard, rounded down to a whole number; among equal entries, the first
            in reading order.
        as_topk: among equal entries, discard those that torch's topk returns.
        keep_cls_to_cls: whether to keep the first entry, CLS to CLS.
    """
    entries = matrix.flatten(-2)
    count = int(entries.shape[-1] * ratio)
    if count:
        is_of_processor = entries.is_cpu and entries.ndim == 1
        entries = (_by_partition if is_of_processor else _by_sorting)(entries, count, as_topk)
    if keep_cls_to_cls:
        entries = torch.cat([matrix[..., 0, :1], entries[..., 1:]], -1)
    return [(slice(0, matrix.shape[-2]), entries.view_as(matrix))]


def _by_sorting(entries: torch.Tensor, count: int, as_topk: bool) -> torch.Tensor:
    """``"… entry"`` without the lowest ones of each; no number leaves a graphics card.

    A card sorts all entries sooner than it answers a question about them.
    """
    if as_topk:
        return entries.scatter(-1, entries.topk(count, largest=False).indices, 0)
    value = entries.sort(-1).values[..., count - 1, None]
    is_lower, is_equal = entries < value, entries == value
    ties = count - is_lower.sum(-1, keepdim=True)
    return entries.masked_fill(is_lower | (is_equal & (is_equal.cumsum(-1) <= ties)), 0)


def _by_partition(entries: torch.Tensor, count: int, as_topk: bool) -> torch.Tensor:
    """As :func:`_by_sorting`, for one matrix on a processor.

    NumPy's partition takes a fifth of the time of torch's kthvalue, and a seventieth of topk's.
    """
    value = float(np.partition(entries.detach().numpy(), count - 1)[count - 1])
    places = (entries == value).nonzero()[:, 0]
    highest = places[count - int((entries < value).sum()) :]
    if as_topk and len(highest):
        return _by_sorting(entries, count, as_topk)
    return F.threshold(entries, value, 0.0).index_put((highest,), entries[highest])
