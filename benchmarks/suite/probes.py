"""What the probes cost an analysis without probes: the norms of all tokens, which every forward pass records."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.benchmark import Benchmark, Case, Make, Run, Settings
from benchmarks.models import Models
from benchmarks.shapes import B_16, S_8, TI_16
from vitviz.attention.memory import copy_tokens, empty_record, trim_heap
from vitviz.attention.precision import precise
from vitviz.attention.trace import AttentionTrace
from vitviz.attribution import rollout
from vitviz.models.layers import AttentionOutput
from vitviz.models.vit import Encoding, VisionTransformer

WITHOUT, WITH = "vitviz without the norms of tokens", "vitviz, no probe asked for"
Encode = Callable[[VisionTransformer, torch.Tensor], Encoding]


def contestants(case: Case, settings: Settings) -> dict[str, Make]:
    models = Models(case.shape, settings.folder)
    return {
        WITHOUT: partial(analysis, models, encode_without_norms),
        WITH: partial(analysis, models, VisionTransformer.encode),
    }


def analysis(models: Models, encode: Encode) -> Run:
    """Logits, trace, the rows of all layers and heads, and a mean rollout."""
    network, pixels = models.vitviz.network, models.pixels

    @torch.inference_mode()
    def run() -> object:
        encoding = encode(network, pixels)
        trace = encoding.traces[0]
        return encoding, trace.rows("cls"), rollout(trace)

    return run


def encode_without_norms(network: VisionTransformer, pixels: torch.Tensor) -> Encoding:
    """:meth:`VisionTransformer.encode` of one image without the norms of tokens."""
    queries = keys = torch.empty(0)
    log_sums: dict[int, torch.Tensor] = {}

    def record(layer: int, attended: AttentionOutput) -> None:
        nonlocal queries, keys
        if layer == 0:
            like, depth = precise(attended.keys[:0]), network.config.depth
            queries, keys = empty_record((depth, *attended.keys.shape[1:]), like)
        copy_tokens(attended.queries[0].detach(), queries[layer])
        copy_tokens(attended.keys[0].detach(), keys[layer])
        if attended.log_sums is not None and attended.log_sums.shape[-1] == attended.keys.shape[2]:
            log_sums[layer] = attended.log_sums[0].clone()

    tokens, layout = network._run(pixels, record, on_chunk=lambda _: None)
    logits = network.read(tokens, layout, record=lambda _: None)
    trim_heap(keys[0])
    return Encoding(logits, (AttentionTrace(queries, keys, network.scale, layout, known_log_sums=log_sums),))


BENCHMARK = Benchmark(
    "probes",
    "An analysis that asks for no probe",
    "Logits, trace, CLS rows and mean rollout, with the norms of all tokens, which the probes need and every forward "
    "pass measures, and without. Processor time; every second round goes backwards. The interval is that of the "
    "median of the ratios, by ranks; the bar is that it holds 1.",
    (Case(TI_16, 101), Case(B_16, 41), Case(S_8, 31)),
    contestants,
    paired=True,
)
