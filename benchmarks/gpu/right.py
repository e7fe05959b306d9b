"""Every method, probe and scale on the card, beside the processor."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np
import torch

import vitviz
from benchmarks.gpu.card import MET, MISSED, Card, held_to
from benchmarks.networks import CPU, S_14, Shape, own_network_of, transformers_model
from vitviz import METHODS, Analysis, Model
from vitviz.analysis.encoder import Encoder
from vitviz.evaluation.probes import PROBES, probe
from vitviz.visualization.scales import SCALES
from vitviz.weights import resources

# Of the highest value of a map: in single precision, and with the layers in half of it.
BOUNDS = {"float32": 1e-4, "bfloat16": 0.05}
# A patch is in or out, or the narrowest way changes: single patches may differ by a whole value.
ORDERED = ("attention_mass", "attention_flow")
PICTURE = resources("assets") / "chelsea.jpg"
TESTS = "tests/analysis/test_cuda.py"
DIFFERENCES, TESTED, WAITS = TABLES = (
    "Largest differences of the card from the processor in float32",
    "Tests",
    "Waits of the processor for the card, in one call",
)


def measure(card: Card) -> None:
    # No TF32: products and convolutions in single precision are to have all of its bits.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    shape = S_14.at(224).stand_in() if card.small else S_14.at(224)
    names = {"bundled": None, f"{shape.name}, own engine": "own", f"{shape.name}, as a module": "module"}
    for (name, engine), precision in product(names.items(), BOUNDS):
        compare(card, f"{name}, {precision}", precision, partial(open_model, shape, engine))
    run_tests(card)
    if not card.small:
        count_waits(card)


def open_model(shape: Shape, engine: str | None, device: torch.device, precision: str) -> Model:
    """The bundled model, or with an engine the module of a shape."""
    if engine is None:
        return vitviz.load(device=device, precision=precision)
    module = transformers_model(shape, "sdpa")
    if engine == "own":
        options = {"normalisation": "half", "labels": shape.labels}
        return own_network_of(module, shape, device=device, precision=precision, **options)
    # A module computes in its own precision.
    module = module.to(device, getattr(torch, precision))
    return vitviz.load(module, preprocessing=shape.preprocessing, labels=shape.labels)


def compare(card: Card, row: str, precision: str, open_on: Callable[[torch.device, str], Model]) -> None:
    """Add a row with the largest differences between the card and the processor."""
    models = open_on(CPU, "float32"), open_on(card.device, precision)
    # A few patches are enough to try it out.
    resolution = 8 * models[0].network.config.patch_height if card.small else None
    expected, found = (vitviz.analyze(PICTURE, model, resolution=resolution) for model in models)
    bound = BOUNDS[precision]
    differences = {
        "logits": distance(found.logits.cpu(), expected.logits),
        "attention": max(
            float((found.trace.row(layer, token).cpu() - expected.trace.row(layer, token)).abs().max())
            for layer in range(expected.trace.layers)
            for token in (0, expected.trace.layout.token_count - 1)
        ),
        "row sums": max(
            float((weights.sum(-1) - 1).abs().max())
            for layer in range(found.trace.layers)
            for _, weights in found.trace.weights_in_chunks(layer)
        ),
    }
    cells = {
        **{each: held_to(difference, bound) for each, difference in differences.items()},
        "maps": worst(maps_of(found, expected), bound),
        "probes": worst(probes_of(found, expected), 20 * bound),
        "scales": worst(scales_of(found, expected), 20 * bound),
    }
    card.add(DIFFERENCES, row, cells)


def distance(found: torch.Tensor, expected: torch.Tensor, scale: float = 1e-12) -> float:
    """The largest difference, as a share of the highest magnitude; what is undefined in both counts as equal."""
    difference = (found.detach().cpu().double() - expected.detach().double()).nan_to_num(0).abs().max()
    return float(difference / expected.detach().double().nan_to_num(0).abs().max().clamp(min=scale))


def worst(differences: Iterator[tuple[str, float]], bound: float) -> str:
    """The largest of some differences, and whose it is."""
    name, value = max(differences, key=lambda each: each[1])
    return f"{held_to(value, bound)} ({name})"


def maps_of(found: Analysis, expected: Analysis) -> Iterator[tuple[str, float]]:
    target = int(expected.logits.argmax())
    for name, method in METHODS.items():
        if method.refusal(expected.model.network.config) is None:
            options = {"target": target} if method.class_specific else {}
            if any(parameter.name == "steps" for parameter in method.parameters):
                options["steps"] = 8
            # A fall of the score is a difference of two scores, each with an error of its own.
            scale = float(expected.logits[target].abs()) if name == "occlusion" else 1e-12
            values, wanted = found.map(name, **options).values, expected.map(name, **options).values
            # The mean over the patches, where a single one may change by a whole value.
            mean = float((values - wanted).abs().mean() / wanted.max())
            yield name, mean if name in ORDERED else distance(values, wanted, scale)


def probes_of(found: Analysis, expected: Analysis) -> Iterator[tuple[str, float]]:
    for name, record in PROBES.items():
        if record.refusal(expected.model.network.config) is None:
            measured = probe(found, name).measurements
            for part, measurement in probe(expected, name).measurements.items():
                # An index of a token or a class says another thing for a difference of nothing.
                if measurement.values.dtype.is_floating_point and not measurement.indexes:
                    yield f"{name}.{part}", distance(measured[part].values, measurement.values)


def scales_of(found: Analysis, expected: Analysis) -> Iterator[tuple[str, float]]:
    # Ranks of patches that are equal but for rounding may differ.
    pair = found.rollout(), expected.rollout()
    for name in SCALES.keys() - {"rank"}:
        colours = [each.scale(vitviz.Style(scale=name)).place(each.values) for each in pair]
        yield name, float(np.abs(colours[0] - colours[1]).max())


def run_tests(card: Card) -> None:
    """The project's own tests of cards."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS],
        capture_output=True,
        text=True,
        check=False,
    )
    (card.output / "tests.log").write_text(done.stdout + done.stderr)
    summary = done.stdout.strip().splitlines() or ["nothing was printed"]
    counted = next((line for line in reversed(summary) if " in " in line), summary[-1])
    card.add(TESTED, TESTS, {"result": f"{counted.strip('= ')} {MISSED if done.returncode else MET}"})


def count_waits(card: Card) -> None:
    """How often each step waits for the card, as torch notices it."""
    model = vitviz.load(device="cuda")
    analysis = vitviz.analyze(PICTURE, model)
    prepared = [analysis.prepared] * 4
    steps: dict[str, Callable[[], object]] = {
        "analysis": lambda: vitviz.analyze(PICTURE, model),
        "batch of four": lambda: Encoder(model).encode(prepared),
        "rows": lambda: analysis.trace.rows("cls"),
        "sheet": analysis.attention_sheet,
    }
    steps |= {
        name: lambda name=name: analysis.map(name, **({"target": 0} if METHODS[name].class_specific else {}))
        for name, method in METHODS.items()
        if method.refusal(model.network.config) is None and name not in ORDERED
    }
    for name, step in steps.items():
        step()
        waits = waits_of(step)
        card.add(WAITS, name, {"waits": held_to(waits, 0) if name in ("analysis", "batch of four", "rows") else waits})


def waits_of(step: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in noticed)
