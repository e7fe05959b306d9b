"""A whole analysis, compared with a forward pass."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.benchmark import MIB, Benchmark, Case, Make, Models, Run
from benchmarks.networks import B_14, B_16, S_8, TI_16, transformers_model
from benchmarks.others import materialised_rollout, unfused_timm, vit_explain
from tests.parity.package_answers import collect_outputs
from vitviz.attribution import rollout

FORWARD = "timm forward pass"
HOOKS = "timm hooks, matrices multiplied"
MEAN = "vitviz: trace, CLS rows, mean rollout"
MAX = "vitviz: trace, CLS rows, max rollout, 90% discarded"
# Above this size, keeping the attention weights of all layers needs more memory than many machines have.
MAX_MAP_BYTES = 4 * 2**30


def timm_forward(models: Models) -> Run:
    return torch.inference_mode()(partial(models.timm, models.pixels))


def if_maps_fit(make: Make) -> Make:
    """A contestant who takes part where the attention weights of all layers and heads are not too large."""

    def make_if(models: Models) -> Run | None:
        shape = models.case.shape
        return make(models) if 4 * shape.depth * shape.heads * shape.tokens**2 < MAX_MAP_BYTES else None

    return make_if


@if_maps_fit
def timm_hooks(models: Models) -> Run:
    model, pixels = unfused_timm(models), models.pixels
    modules = [block.attn.attn_drop for block in model.blocks]

    @torch.inference_mode()
    def run() -> object:
        with collect_outputs(modules, lambda weights: weights) as layers:
            return model(pixels), materialised_rollout(layers)

    return run


@if_maps_fit
def _transformers(models: Models) -> Run:
    model, pixels = transformers_model(models.case.shape, "eager"), models.pixels

    @torch.inference_mode()
    def run() -> object:
        output = model(pixels, output_attentions=True)
        return output.logits, materialised_rollout(output.attentions)

    return run


@if_maps_fit
def _vit_explain(models: Models) -> Run | None:
    checkout = models.settings.vit_explain
    return partial(vit_explain(checkout, unfused_timm(models)), models.pixels) if checkout else None


def _forward(models: Models) -> Run:
    return torch.inference_mode()(partial(models.vitviz.network, models.pixels))


def analysis(
    models: Models, engine: str = "own", precision: str = "float32", rolls_out: bool = True, **parameters: Any
) -> Run:
    """Logits, trace, the rows of all layers and heads, and a rollout."""
    is_plain = (engine, precision) == ("own", "float32")
    network, pixels = (models.vitviz if is_plain else models.open(engine, precision)).network, models.pixels

    @torch.inference_mode()
    def run() -> Any:
        encoding = network.encode(pixels)
        trace = encoding.traces[0]
        return encoding, trace.rows("cls"), rollout(trace, **parameters) if rolls_out else None

    return run


BENCHMARK = Benchmark(
    "analysis",
    "A whole analysis",
    "Logits, the attention of the CLS token in all layers and heads, and attention rollout, as ratios to timm's fused "
    "forward pass, which gives logits only. timm and vitviz have the same random weights, the others their own.",
    (Case(TI_16, 15), Case(B_16, 15), Case(S_8, 7), Case(B_14, 7, memory=True), Case(S_8.at(480), 5, memory=True)),
    {
        FORWARD: timm_forward,
        "transformers, output_attentions, matrices multiplied": _transformers,
        HOOKS: timm_hooks,
        "vit-explain, max, 90% discarded": _vit_explain,
        "vitviz: forward pass": _forward,
        "vitviz: trace, CLS rows": partial(analysis, rolls_out=False),
        MEAN: analysis,
        MAX: partial(analysis, head_fusion="max", discard_ratio=0.9),
        "vitviz in bfloat16: trace, CLS rows, mean rollout": partial(analysis, precision="bfloat16"),
    },
    bars={
        (MEAN, "time"): (1.3, 1.06, 1.2, 1.2, 1.6),
        (MAX, "time"): (1.4, 1.1, 1.3, 1.3, 1.8),
        (MEAN, "memory"): (None, None, None, 150 * MIB, 260 * MIB),
        (MAX, "memory"): (None, None, None, 150 * MIB, 260 * MIB),
    },
)
