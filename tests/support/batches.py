"""Pictures for batches, and a check that an analysis in a batch equals one of its image alone."""

from __future__ import annotations

import threading

import torch

from vitviz import Analysis


def check_same(found: Analysis, alone: Analysis) -> None:
    assert found.model is alone.model
    assert found.prepared.image.tobytes() == alone.prepared.image.tobytes()
    assert found.prepared.geometry == alone.prepared.geometry
    assert torch.equal(found.prepared.pixels, alone.prepared.pixels)
    assert found.trace.layout == alone.trace.layout
    assert found.trace.keep_bytes == alone.trace.keep_bytes
    assert found.logits.shape == alone.logits.shape
    torch.testing.assert_close(found.logits, alone.logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.trace.queries, alone.trace.queries, atol=1e-4, rtol=1e-2)
    torch.testing.assert_close(found.trace.keys, alone.trace.keys, atol=1e-4, rtol=1e-2)
    torch.testing.assert_close(found.rollout().values, alone.rollout().values, atol=1e-4, rtol=0)


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("vitviz-batch")]
