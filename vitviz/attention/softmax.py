"""Attention weights from queries and keys: all at once, or in chunks of query tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from vitviz.attention.layout import index_from_end
from vitviz.attention.memory import buffer_view, empty
from vitviz.attention.precision import plain_torch
from vitviz.errors.arguments import integer_or_none, word
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, describe, did_you_mean

HeadFusion = Literal["mean", "max", "min"]
HEAD_FUSIONS: dict[HeadFusion, Callable[..., torch.Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}
# Fusions that select one head's number, so that they commute with the logarithm.
ORDER_FUSIONS = ("max", "min")
# Two buffers of this size and the keys of a layer fit into the second-level caches of two CPU cores.
CHUNK_BYTES = 4 * 2**20
# A graphics card needs fewer, larger kernels.
DEVICE_CHUNK_BYTES = 128 * 2**20
# A computation can only be cancelled between kernels. On two cores, this many operations take a fraction of a second.
OPERATIONS_PER_KERNEL = 2**35


@plain_torch()
def attention_weights(
    queries: torch.Tensor, keys: torch.Tensor, scale: float, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention weights: the softmax over keys of the scaled scores.

    Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    Args:
        queries: ``"... query dim"``.
        keys: ``"... key dim"``.
        scale: factor of the scores, usually ``dim ** -0.5``.
        bias: ``"... query key"``, added to the scaled scores.

    Returns:
        ``"... query key"``; every row sums to 1.
    """
    scores = queries @ keys.transpose(-1, -2) * scale
    return (scores if bias is None else scores + bias).softmax(-1)


def scores_in_chunks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    rows: slice = slice(None),
    log_sums: torch.Tensor | None = None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Attention scores in chunks of query tokens, in memory that does not grow with the square of the tokens.

    Args:
        queries: ``"head query dim"``.
        keys: ``"head key dim"``.
        scale: factor of the scores.
        bias: ``"head query key"``, added to the scaled scores.
        rows: the query tokens to compute; all by default.
        log_sums: ``"head query"``, subtracted from each row. If they are the logarithms of the rows' sums of
            exponentials, the results are the logarithms of the attention weights.

    Yields:
        Each chunk's slice of query tokens and their scores ``"head query key"``: at most :data:`CHUNK_BYTES` on a CPU
        and :data:`DEVICE_CHUNK_BYTES` elsewhere, but at least one query token. The next chunk overwrites them.
    """
    heads, tokens, _ = keys.shape
    start, end, _ = rows.indices(queries.shape[1])
    chunk_bytes = CHUNK_BYTES if keys.is_cpu else DEVICE_CHUNK_BYTES
    count = max(1, min(end - start, chunk_bytes // (heads * tokens * keys.itemsize)))
    columns = keys.transpose(1, 2)
    if keys.is_cpu:
        # Once; otherwise every product would copy them.
        columns = columns.contiguous()
    buffer = empty((heads, count, tokens), keys)
    for first in range(start, end, count):
        block = slice(first, min(first + count, end))
        # The last chunk may be smaller.
        scores = buffer_view(buffer, (heads, block.stop - block.start, tokens))
        if log_sums is None:
            torch.bmm(queries[:, block] * scale, columns, out=scores)
        else:
            torch.baddbmm(log_sums[:, block, None], queries[:, block], columns, beta=-1, alpha=scale, out=scores)
        if bias is not None:
            scores += bias[:, block]
        yield block, scores


def weights_in_chunks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    rows: slice = slice(None),
    log_sums: torch.Tensor | None = None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Attention weights in chunks of query tokens, as :func:`scores_in_chunks` yields scores.

    With ``log_sums``, the logarithm of each row's sum of exponentials, ``"head query"``, one pass turns the scores into
    weights in place. Without, the weights need a second buffer of the same size.
    """
    buffer = None
    for block, scores in scores_in_chunks(queries, keys, scale, bias, rows, log_sums):
        if log_sums is not None:
            yield block, scores.exp_()
            continue
        if buffer is None:
            buffer = empty(scores.shape, scores)
        weights = buffer_view(buffer, scores.shape)
        torch.softmax(scores, -1, out=weights)
        yield block, weights


def fused_in_chunks(
    fusion: HeadFusion,
    queries: torch.Tensor,
    keys: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    rows: slice = slice(None),
    log_sums: torch.Tensor | None = None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Attention weights with the heads fused, ``"query key"``, in chunks of query tokens.

    Arguments as for :func:`weights_in_chunks`, errors as of :func:`fuse_heads`.
    """
    if fusion in ORDER_FUSIONS and log_sums is not None:
        # The exponential is monotonic: fuse first, then exponentiate one matrix instead of one per head.
        for block, scores in scores_in_chunks(queries, keys, scale, bias, rows, log_sums):
            yield block, fuse_heads(scores, fusion).exp_()
        return
    for block, weights in weights_in_chunks(queries, keys, scale, bias, rows, log_sums):
        yield block, fuse_heads(weights, fusion)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    on_chunk: Callable[[], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Values weighted by attention, through torch's fused kernel: all ``"batch head token dim"``.

    Args:
        queries, keys, values: of all heads.
        scale: factor of the scores.
        on_chunk: called now and then during the attention of very many tokens; an exception from it ends the
            computation.

    Returns:
        The weighted values, and the logarithm of each row's sum of exponentials, ``"batch head query"``, or None where
        the kernel does not return it in full precision.
    """
    count = queries.shape[-2]
    # Each query takes two products with all keys.
    chunk_size = max(1, OPERATIONS_PER_KERNEL // (4 * max(1, keys.numel())))
    if on_chunk is None or count <= chunk_size or not keys.is_cpu:
        return attend_with_sums(queries, keys, values, scale)
    context, log_sums = None, []
    for start in range(0, count, chunk_size):
        rows = slice(start, start + chunk_size)
        chunk, sums = attend_with_sums(queries[:, :, rows], keys, values, scale)
        if context is None:
            batch, heads, _, dim = chunk.shape
            # As the kernel lays out its result: the heads of a token side by side.
            context = chunk.new_empty(batch, count, heads, dim).transpose(1, 2)
        context[:, :, rows] = chunk
        log_sums += [] if sums is None else [sums]
        on_chunk()
    assert context is not None
    return context, torch.cat(log_sums, -1) if log_sums else None


def attend_with_sums(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As :func:`attend`, in one call of the kernel that ``scaled_dot_product_attention`` would choose.

    The kernels return the sums, which that function drops.
    """
    kernel = None
    if _has_precise_sums(queries, keys, values):
        kernel = _KERNELS.get((queries.device.type, torch._fused_sdp_choice(queries, keys, values, scale=scale)))
    if kernel is None:
        return F.scaled_dot_product_attention(queries, keys, values, scale=scale), None
    name, arguments = kernel
    context, log_sums, *_ = getattr(torch, name)(queries, keys, values, *arguments, scale=scale)
    # One kernel fills the sums up to a multiple of 32 queries.
    return context, log_sums.detach()[..., : queries.shape[2]]


def _has_precise_sums(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether a kernel takes these tensors as they are and returns the sums in at least single precision."""
    device = queries.device.type
    # Other devices may not even answer which kernel they would choose.
    if all(device != known for known, _ in _KERNELS):
        return False
    if not queries.dtype == keys.dtype == values.dtype or not queries.numel():
        return False
    # The kernels need the features of a token side by side; on a graphics card also in blocks of eight.
    if any(tensor.stride(-1) != 1 for tensor in (queries, keys, values)):
        return False
    if device == "cpu":
        return queries.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    if queries.shape[-1] % 8 or values.shape[-1] % 8:
        return False
    return not torch.is_autocast_enabled(device) or queries.dtype == torch.get_autocast_dtype(device)


_KERNELS: dict[tuple[str, int], tuple[str, tuple[object, ...]]] = {
    ("cpu", SDPBackend.FLASH_ATTENTION.value): ("_scaled_dot_product_flash_attention_for_cpu", ()),
    ("cuda", SDPBackend.FLASH_ATTENTION.value): ("_scaled_dot_product_flash_attention", ()),
    ("cuda", SDPBackend.EFFICIENT_ATTENTION.value): ("_scaled_dot_product_efficient_attention", (None, True)),
}
"""torch's functions by device and by its number of the kernel, with their arguments after the values.

cuDNN's kernel is left out: it takes twice the time to start where it returns sums.
"""


def fuse_heads(weights: torch.Tensor, fusion: HeadFusion) -> torch.Tensor:
    """Fuse heads, ``"head ..."`` to ``"..."``, by mean, max or min.

    Raises:
        MethodError: the fusion is none of these.
    """
    word("head fusion", fusion, HEAD_FUSIONS)
    return HEAD_FUSIONS[fusion](weights, 0)


def one_head(weights: torch.Tensor, head: int | HeadFusion) -> tuple[torch.Tensor, str]:
    """One head, ``"head ..."`` to ``"..."``, or the fusion of all; and its name in captions.

    Args:
        weights: weights of all heads.
        head: number from 0, or from the end as ``-1``, or a name in :data:`HEAD_FUSIONS`.

    Raises:
        QueryError: there is no such head.
        MethodError: ``head`` is neither a number nor a fusion.
    """
    count, index = len(weights), integer_or_none(head)
    if index is not None:
        index = index_from_end("head", index, count)
        return weights[index], f"head {index}"
    if not isinstance(head, str) or head not in HEAD_FUSIONS:
        legal = f"expected a number from 0 to {count - 1}, {choices(HEAD_FUSIONS)}"
        raise MethodError(f"head {describe(head)}: {legal}{did_you_mean(head, HEAD_FUSIONS)}")
    return fuse_heads(weights, head), f"{head} of {count} heads"
