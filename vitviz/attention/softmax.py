"""From attention scores to attention weights: all at once, or a few query tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from vitviz.attention.layout import index_from_end
from vitviz.attention.memory import beginning, empty
from vitviz.errors.arguments import integer_or_none, word
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices, describe, did_you_mean

HEAD_FUSIONS: dict[str, Callable[..., torch.Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}
# What takes one of the heads' numbers, and the same one of their logarithms.
ORDERED = ("max", "min")
# On a processor two buffers of this size and the keys of a layer stay in the second-level cache of two cores.
CHUNK_BYTES = 4 * 2**20
DEVICE_CHUNK_BYTES = 128 * 2**20
# A computation can be cancelled between kernels: this many take a fraction of a second on two cores.
OPERATIONS_PER_KERNEL = 2**35


def attention_weights(
    queries: torch.Tensor, keys: torch.Tensor, scale: float, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention weights, the softmax over keys of the scaled scores.

    Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    Args:
        queries: ``"... query dim"``.
        keys: ``"... key dim"``.
        scale: what the scores are multiplied with, usually ``dim ** -0.5``.
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
    most_bytes: int | None = None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Attention scores of a few query tokens at a time, in memory that does not grow with the square of the tokens.

    Args:
        queries: ``"head query dim"``.
        keys: ``"head key dim"``.
        scale: what the scores are multiplied with.
        bias: ``"head query key"``, added to the scaled scores.
        rows: of which query tokens; all where it is not given.
        log_sums: ``"head query"``, taken away from each row. With the logarithm of the sum of its exponentials, what
            remains are the logarithms of attention weights.
        most_bytes: of the scores; :data:`CHUNK_BYTES` on a processor and :data:`DEVICE_CHUNK_BYTES` elsewhere where it
            is not given.

    Yields:
        Which query tokens, and their scores ``"head query key"``: at most so many bytes, at least one query token;
        overwritten when the next are asked for.
    """
    heads, tokens, _ = keys.shape
    start, end, _ = rows.indices(queries.shape[1])
    most = most_bytes or (CHUNK_BYTES if keys.device.type == "cpu" else DEVICE_CHUNK_BYTES)
    count = max(1, min(end - start, most // (heads * tokens * keys.itemsize)))
    # Contiguous keys, or every product would copy them again.
    columns = keys.transpose(1, 2).contiguous()
    buffer = empty((heads, count, tokens), keys)
    for first in range(start, end, count):
        chosen = slice(first, min(first + count, end))
        # The last chunk may be smaller.
        scores = beginning(buffer, (heads, chosen.stop - chosen.start, tokens))
        if log_sums is None:
            torch.bmm(queries[:, chosen] * scale, columns, out=scores)
        else:
            torch.baddbmm(log_sums[:, chosen, None], queries[:, chosen], columns, beta=-1, alpha=scale, out=scores)
        if bias is not None:
            scores += bias[:, chosen]
        yield chosen, scores


def weights_in_chunks(
    queries: torch.Tensor,
    keys: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    rows: slice = slice(None),
    log_sums: torch.Tensor | None = None,
    most_bytes: int | None = None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Attention weights of a few query tokens at a time, as :func:`scores_in_chunks` gives scores.

    With ``log_sums``, the logarithm of the sum of each row's exponentials, ``"head query"``, they stand in the scores'
    own place and take one pass over it; without, in a second buffer of the same size.
    """
    buffer = None
    for chosen, scores in scores_in_chunks(queries, keys, scale, bias, rows, log_sums, most_bytes):
        if log_sums is not None:
            yield chosen, scores.exp_()
            continue
        if buffer is None:
            buffer = empty(scores.shape, scores)
        weights = beginning(buffer, scores.shape)
        torch.softmax(scores, -1, out=weights)
        yield chosen, weights


def fused_in_chunks(
    fusion: str,
    queries: torch.Tensor,
    keys: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    rows: slice = slice(None),
    log_sums: torch.Tensor | None = None,
    into: torch.Tensor | None = None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Attention weights with the heads fused, ``"query key"``, of a few query tokens at a time.

    Arguments as those of :func:`weights_in_chunks`, errors as those of :func:`fuse_heads`; with ``into``, what comes is
    written into that matrix of all tokens.
    """
    if fusion in ORDERED and log_sums is not None:
        # The highest score has the highest weight: only one head's exponentials are needed.
        for chosen, scores in scores_in_chunks(queries, keys, scale, bias, rows, log_sums):
            yield chosen, fuse_heads(scores, fusion, None if into is None else into[chosen]).exp_()
        return
    for chosen, weights in weights_in_chunks(queries, keys, scale, bias, rows, log_sums):
        yield chosen, fuse_heads(weights, fusion, None if into is None else into[chosen])


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    on_chunk: Callable[[], None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Values weighted by attention, through torch's fused kernel: all ``"batch head token dim"``.

    Args:
        queries, keys, values: of every head.
        scale: what the scores are multiplied with.
        on_chunk: is called now and then while the attention of very many tokens is computed; an exception that it
            raises ends it.

    Returns:
        The weighted values; and the logarithm of the sum of each row's exponentials, ``"batch head query"``, where the
        kernel tells it in full precision: on a processor, unless it computes in half of it.
    """
    count = queries.shape[-2]
    # Two products of each query with all keys.
    at_once = max(1, OPERATIONS_PER_KERNEL // (4 * max(1, keys.numel())))
    if on_chunk is None or count <= at_once:
        return _attend(queries, keys, values, scale)
    context, log_sums = None, []
    for start in range(0, count, at_once):
        rows = slice(start, start + at_once)
        part, sums = _attend(queries[:, :, rows], keys, values, scale)
        if context is None:
            batch, heads, _, dim = part.shape
            # The layout that the kernel returns: the heads of a token lie side by side.
            context = part.new_empty(batch, count, heads, dim).transpose(1, 2)
        context[:, :, rows] = part
        log_sums += [] if sums is None else [sums]
        on_chunk()
    assert context is not None
    return context, torch.cat(log_sums, -1) if log_sums else None


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if tells_sums(queries, keys, values):
        return attend_with_sums(queries, keys, values, scale)
    return F.scaled_dot_product_attention(queries, keys, values, scale=scale), None


def tells_sums(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether :func:`attend_with_sums` takes these, and tells the sums in full precision."""
    is_precise = queries.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    # The kernel assumes that the numbers of a token are contiguous.
    is_contiguous = all(tensor.stride(-1) == 1 for tensor in (queries, keys, values))
    return queries.device.type == "cpu" and is_precise and is_contiguous and queries.numel() > 0


def attend_with_sums(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values weighted by attention, all ``"batch head token dim"``, and the logarithm of the sum of each row's
    exponentials, ``"batch head query"``.

    The kernel is that of ``scaled_dot_product_attention`` on a processor, which drops the second result.
    """
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    context, log_sums = kernel(queries, keys, values, scale=scale)
    return context, log_sums.detach()


def fuse_heads(weights: torch.Tensor, fusion: str, into: torch.Tensor | None = None) -> torch.Tensor:
    """Many heads as one: ``"head ..."`` to ``"..."`` by mean, max or min; written into a tensor where it is given.

    Raises:
        MethodError: the fusion is none of these.
    """
    word("head fusion", fusion, HEAD_FUSIONS)
    return HEAD_FUSIONS[fusion](weights, 0, out=into)


def one_head(weights: torch.Tensor, head: int | str) -> tuple[torch.Tensor, str]:
    """One head of several, ``"head ..."`` to ``"..."``, or their fusion; and what a caption calls it.

    Args:
        weights: of all heads.
        head: counted from 0, or from the end as ``-1``, or a name in :data:`HEAD_FUSIONS`.

    Raises:
        QueryError: there is no such head.
        MethodError: it is neither a number nor a fusion.
    """
    count, index = len(weights), integer_or_none(head)
    if index is not None:
        index = index_from_end("head", index, count)
        return weights[index], f"head {index}"
    if not isinstance(head, str) or head not in HEAD_FUSIONS:
        legal = f"expected a number from 0 to {count - 1}, {choices(HEAD_FUSIONS)}"
        raise MethodError(f"head {describe(head)}: {legal}{did_you_mean(head, HEAD_FUSIONS)}")
    return fuse_heads(weights, head), f"{head} of {count} heads"
