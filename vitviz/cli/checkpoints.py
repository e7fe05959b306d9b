"""Checkpoints as the command opens them."""

from __future__ import annotations

from typing import Any

from vitviz.weights import DownloadProgress, Model, Reading, parse_overrides, read

BASE = "base="


def read_with_bar(checkpoint: str, family: str | None, overrides: list[str], **computing: Any) -> Reading:
    """A checkpoint, with a bar on the terminal while it is downloaded."""
    from tqdm import tqdm

    bar: Any = None

    def show(progress: DownloadProgress) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=progress.total, desc=progress.repository, unit="B", unit_scale=True, initial=progress.done)
        bar.update(progress.done - bar.n)

    base = next((text.removeprefix(BASE) for text in reversed(overrides) if text.startswith(BASE)), None)
    facts = parse_overrides([text for text in overrides if not text.startswith(BASE)])
    try:
        return read(checkpoint, family=family, report=show, base=base, **computing, **facts)
    finally:
        if bar is not None:
            bar.close()


def load_with_bar(checkpoint: str, family: str | None, overrides: list[str], device: str, precision: str) -> Model:
    """The model of a checkpoint in the same way."""
    return read_with_bar(checkpoint, family, overrides, device=device, precision=precision).model
