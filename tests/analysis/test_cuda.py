"""The same on a GPU, where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import vitviz
from vitviz import METHODS, Model

EXAMPLE = Path(__file__).parents[2] / "assets" / "chelsea.jpg"
# Of the highest value of a map: computed in single precision, and with the layers in half of it.
BOUNDS = {"float32": 1e-4, "bfloat16": 0.05}

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("precision", BOUNDS)
def test_every_map_is_that_of_the_processor(bundled: Model, precision: str) -> None:
    expected = vitviz.analyze(EXAMPLE, bundled)
    found = vitviz.analyze(EXAMPLE, vitviz.load(device="cuda", precision=precision))
    bound = BOUNDS[precision]
    torch.testing.assert_close(found.logits.cpu().float(), expected.logits, atol=20 * bound, rtol=0)
    target = int(expected.logits.argmax())
    # What is in or out, or the narrowest way, can change by a whole value.
    for name in METHODS.keys() - {"attention_mass", "attention_flow", "pooling_attention"}:
        options = {"target": target} if METHODS[name].class_specific else {}
        values = expected.map(name, **options).values
        difference = (found.map(name, **options).values.cpu() - values).abs().max()
        assert float(difference) <= bound * float(values.max()), name
    for layer in range(expected.trace.layers):
        assert found.trace.row(layer, "cls").dtype == torch.float32


def test_discarding_is_exact_there_too(bundled: Model) -> None:
    expected = vitviz.analyze(EXAMPLE, bundled).rollout(head_fusion="max", discard_ratio=0.5)
    found = vitviz.analyze(EXAMPLE, vitviz.load(device="cuda")).rollout(head_fusion="max", discard_ratio=0.5)
    torch.testing.assert_close(found.values.cpu(), expected.values, atol=1e-3, rtol=0)
