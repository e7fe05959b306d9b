"""The same on a GPU, where there is one. Needs neither the page's packages nor a browser's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import vitviz
from tests.support.example import EXAMPLE
from vitviz import METHODS, Analysis, Model
from vitviz.analysis.batches import map_batch
from vitviz.analysis.encoder import Encoder
from vitviz.attribution import rollout_matrix
from vitviz.callbacks import AttentionWatch
from vitviz.evaluation.probes import PROBES, probe

# Of the highest value of a map: computed in single precision, and with the layers in half of it.
BOUNDS = {"float32": 1e-4, "bfloat16": 0.05}

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    """The bundled model on the card, by precision."""
    return {precision: vitviz.load(device="cuda", precision=precision) for precision in BOUNDS}


@pytest.mark.parametrize("precision", BOUNDS)
def test_every_map_is_that_of_the_processor(bundled: Model, models: dict[str, Model], precision: str) -> None:
    expected = vitviz.analyze(EXAMPLE, bundled)
    found = vitviz.analyze(EXAMPLE, models[precision])
    bound = BOUNDS[precision]
    torch.testing.assert_close(found.logits.cpu().float(), expected.logits, atol=20 * bound, rtol=0)
    target = int(expected.logits.argmax())
    # What is in or out, or the narrowest way, can change by a whole value.
    for name, method in METHODS.items():
        if name in ("attention_mass", "attention_flow") or method.refusal(bundled.network.config) is not None:
            continue
        options = {"target": target} if method.class_specific else {}
        values = expected.map(name, **options).values
        # A fall of the score is a difference of two scores, each with an error of its own.
        scale = expected.logits[target] if name == "occlusion" else values.max()
        difference = (found.map(name, **options).values - values).abs().max()
        assert float(difference) <= bound * float(scale), name
    for layer in range(expected.trace.layers):
        assert found.trace.row(layer, "cls").dtype == torch.float32


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
@pytest.mark.parametrize("precision", BOUNDS)
def test_rows_sum_to_1_with_the_log_sums_of_the_kernel(
    models: dict[str, Model], precision: str, kernel: SDPBackend
) -> None:
    if precision == "float32" and kernel == SDPBackend.FLASH_ATTENTION:
        pytest.skip("this kernel has half precision only")
    with sdpa_kernel(kernel):
        trace = vitviz.analyze(EXAMPLE, models[precision]).trace
    assert set(trace.known_log_sums) >= set(range(trace.layers - 1))
    for layer in range(trace.layers):
        for _, weights in trace.weights_in_chunks(layer):
            assert float((weights.sum(-1) - 1).abs().max()) < 1e-4


def test_every_probe_is_that_of_the_processor(bundled: Model, models: dict[str, Model]) -> None:
    expected, found = (vitviz.analyze(EXAMPLE, model) for model in (bundled, models["float32"]))
    for name, record in PROBES.items():
        if record.refusal(bundled.network.config) is None:
            measured = probe(found, name).measurements
            for part, measurement in probe(expected, name).measurements.items():
                if measurement.values.dtype.is_floating_point and not measurement.indexes:
                    scale = float(measurement.values.nan_to_num(0).abs().max())
                    torch.testing.assert_close(
                        measured[part].values, measurement.values, atol=2e-3 * scale, rtol=0, equal_nan=True
                    )


@pytest.mark.parametrize(
    "options",
    [
        {"head_fusion": "max", "discard_ratio": 0.5},
        {"head_fusion": "min", "discard_ratio": 0.9},
        {"head_fusion": "max", "discard_ratio": 0.9, "reference": "vit-explain"},
    ],
    ids=str,
)
def test_discarding_is_exact_there_too(
    bundled: Model, models: dict[str, Model], options: dict[str, float | str]
) -> None:
    expected = vitviz.analyze(EXAMPLE, bundled).map("rollout", **options)
    found = vitviz.analyze(EXAMPLE, models["float32"]).map("rollout", **options)
    torch.testing.assert_close(found.values, expected.values, atol=1e-3, rtol=0)


def test_a_batch_has_the_maps_of_single_images(models: dict[str, Model]) -> None:
    alone = vitviz.analyze(EXAMPLE, models["float32"])
    batch: list[Analysis] = Encoder(models["float32"]).encode([alone.prepared] * 5)
    for options in ({}, {"head_fusion": "max", "discard_ratio": 0.5}):
        expected = alone.rollout(**options).values
        for heatmap in map_batch(batch, "rollout", **options):
            torch.testing.assert_close(heatmap.values, expected, atol=1e-4 * float(expected.max()), rtol=0)


@contextmanager
def without_waiting() -> Iterator[None]:
    """Makes every wait for the card an error."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        # It warns that it does not notice every wait.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("precision", BOUNDS)
def test_an_analysis_waits_for_nothing(models: dict[str, Model], precision: str) -> None:
    steps: list[Callable[[], object]] = [
        lambda: vitviz.analyze(EXAMPLE, models[precision]),
        lambda: Encoder(models[precision]).encode([analysis.prepared] * 3),
        lambda: analysis.trace.rows("cls"),
        lambda: analysis.trace.columns("cls"),
        lambda: rollout_matrix(analysis.trace, head_fusion="max", discard_ratio=0.5),
    ]
    analysis = vitviz.analyze(EXAMPLE, models[precision])
    for step in steps:
        # The first run of a kernel may load it, which waits.
        step()
        with without_waiting():
            step()


class _Log:
    def __init__(self) -> None:
        self.images: list[tuple[str, np.ndarray]] = []

    def add_image(self, name: str, image: np.ndarray, step: int) -> None:
        self.images.append((name, image))


def test_a_training_in_mixed_precision_is_watched(bundled: Model) -> None:
    options: dict[str, Any] = {"preprocessing": bundled.preprocessing, "labels": bundled.labels}
    own = bundled.network
    assert isinstance(own, torch.nn.Module)

    def trained(is_watched: bool) -> tuple[list[float], torch.Tensor, _Log]:
        torch.manual_seed(0)
        network, log = copy.deepcopy(own).cuda().requires_grad_(True).train(), _Log()
        watch = AttentionWatch(network, [EXAMPLE], log, every=1, **options) if is_watched else None
        optimiser, losses = torch.optim.SGD(network.parameters(), lr=1e-3), list[float]()
        for step in range(1, 4):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = network(torch.randn(2, 3, 128, 128, device="cuda")).square().mean()
                if watch is not None:
                    watch(step)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        return losses, torch.cuda.get_rng_state(), log

    (losses, state, _), (watched_losses, watched_state, log) = trained(False), trained(True)
    # Gradients are summed in any order, and three steps amplify what bfloat16 rounds.
    assert watched_losses == pytest.approx(losses, rel=0.02)
    assert torch.equal(state, watched_state)
    assert len(log.images) == 8
    # The first check is of the weights as they were, outside autocast.
    expected = _Log()
    AttentionWatch(own, [EXAMPLE], expected, **options)
    for (name, found), (_, image) in zip(log.images, expected.images, strict=False):
        assert int(abs(found.astype(int) - image.astype(int)).max()) <= 2, name
