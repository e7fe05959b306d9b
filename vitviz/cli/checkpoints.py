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

    bases = [text.removeprefix(BASE) for text in overrides if text.startswith(BASE)]
    facts = parse_overrides([text for text in overrides if not text.startswith(BASE)])
    if bases:
        facts["base"] = bases[-1]
    try:
        return read(checkpoint, family=family, report=show, **computing, **facts)
    finally:
        if bar is not None:
            bar.close()


def load_with_bar(checkpoint: str, family: str | None, overrides: list[str], device: str, precision: str) -> Model:
    """The model of a checkpoint in the same way."""
    return read_with_bar(checkpoint, family, overrides, device=device, precision=precision).model
