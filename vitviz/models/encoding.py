"""Queries and keys of a forward pass of vitviz's own network, recorded as traces."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from vitviz.attention.memory import empty_record, trim_heap
from vitviz.attention.precision import Precision, precise, type_of
from vitviz.attention.trace import AttentionTrace
from vitviz.models.layers import AttentionOutput
from vitviz.models.network import Encoding
from vitviz.progress import Progress

if TYPE_CHECKING:
    from vitviz.models.vit import VisionTransformer


def encode(
    network: VisionTransformer,
    pixels: torch.Tensor,
    storage: Precision | None = None,
    keep_bytes: int = 0,
    report: Callable[[Progress], None] | None = None,
) -> Encoding:
    """Classify images and record the queries and keys of the same forward pass, one trace per image.

    On a graphics card, the traces of a batch share memory, which is freed with the last of them.

    Args:
        network: in evaluation mode.
        pixels: ``"batch channel height width"``, normalised as the checkpoint was trained.
        storage: precision in which the traces store them, by name in
            :data:`vitviz.attention.precision.PRECISIONS`; by default unchanged.
        keep_bytes: cache size of each :class:`vitviz.AttentionTrace`.
        report: called after every layer, and also within a layer for very many tokens; an exception from it ends
            the forward pass.

    Raises:
        ImageError: as :meth:`vitviz.VisionTransformer.forward`.
        ConfigError: the storage is none of these.
    """
    dtype = None if storage is None else type_of(storage, "storage")
    # Queries and keys: of each image on a processor, of the whole batch on a graphics card.
    records: list[tuple[torch.Tensor, torch.Tensor]] = []
    known_log_sums: dict[int, torch.Tensor] = {}
    norms: list[torch.Tensor] = []
    value_norms: list[torch.Tensor] = []

    def report_layers(done: int) -> None:
        if report is not None:
            report(Progress(done, network.config.depth))

    def record(layer: int, attention: AttentionOutput) -> None:
        queries, keys, log_sums = attention.queries.detach(), attention.keys.detach(), attention.log_sums
        if layer == 0:
            like = keys[:0] if dtype is None else keys[:0].to(dtype)
            count = len(keys) if keys.is_cpu else 1
            # All layers in one allocation: small blocks between the activations would fragment memory.
            shape = (len(keys) // count, network.config.depth, *keys.shape[1:])
            records.extend(empty_record(shape, like) for _ in range(count))
        parts = zip(records, queries.chunk(len(records)), keys.chunk(len(records)), strict=True)
        for (all_queries, all_keys), some_queries, some_keys in parts:
            all_queries[:, layer].copy_(some_queries)
            all_keys[:, layer].copy_(some_keys)
        value_norms.append(torch.linalg.vector_norm(precise(attention.values.detach()), dim=-1))
        # Log-sums do not match rounded queries and keys, and those of the last layer may be incomplete.
        is_exact = torch.promote_types(keys.dtype, records[0][1].dtype) == records[0][1].dtype
        if log_sums is not None and log_sums.shape[-1] == keys.shape[2] and is_exact:
            known_log_sums[layer] = log_sums
        report_layers(layer + 1)

    def measure(tokens: torch.Tensor) -> None:
        lengths = torch.linalg.vector_norm(precise(tokens.detach()), dim=-1)
        missing = norms[0].shape[1] - lengths.shape[1] if norms else 0
        # The last layer may compute only the first tokens.
        norms.append(F.pad(lengths, (0, missing), value=math.nan) if missing else lengths)

    tokens, layout = network.run(pixels, record, on_chunk=report_layers, on_tokens=measure)
    norms_by_image, values_by_image = torch.stack(norms, 1), torch.stack(value_norms, 1)
    pooling_attention: list[AttentionOutput] = []
    logits = network.read(tokens, layout, record=pooling_attention.append)
    pooling_weights = [
        F.pad(network.pooler.weights(attention).detach(), (layout.prefix_count, 0)) for attention in pooling_attention
    ]
    if records:
        trim_heap(records[0][1][0, 0])
    sums_by_image = {layer: sums.unbind(0) for layer, sums in known_log_sums.items()}
    traces = [
        AttentionTrace(
            queries,
            keys,
            network.scale,
            layout,
            known_log_sums={
                layer: sums[image].clone() if pixels.is_cpu else sums[image] for layer, sums in sums_by_image.items()
            },
            keep_bytes=keep_bytes,
            pooled=pooling_weights[0][image] if pooling_weights else None,
            norms=norms_by_image[image],
            value_norms=values_by_image[image],
        )
        for image, (queries, keys) in enumerate(chain.from_iterable(zip(*each, strict=True) for each in records))
    ]
    return Encoding(logits, tuple(traces))
