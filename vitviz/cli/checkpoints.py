"""How the command opens checkpoints."""

from __future__ import annotations

from typing import Any

from vitviz.weights import DownloadProgress, Model, Reading, parse_overrides, read

BASE = "base="


def read_with_bar(checkpoint: str, family: str | None, overrides: list[str], **options: Any) -> Reading:
    """Read a checkpoint, with a progress bar while it is downloaded."""
    from tqdm import tqdm

    bar: Any = None

    def show(progress: DownloadProgress) -> None:
        nonlocal bar
        if bar is None:
            bar = tqdm(total=progress.total, desc=progress.repository, unit="B", unit_scale=True, initial=progress.done)
        bar.update(progress.done - bar.n)

    bases = [text.removeprefix(BASE) for text in overrides if text.startswith(BASE)]
    overrides_by_name = parse_overrides([text for text in overrides if not text.startswith(BASE)])
    if bases:
        overrides_by_name["base"] = bases[-1]
    try:
        return read(checkpoint, family=family, report=show, **options, **overrides_by_name)
    finally:
        if bar is not None:
            bar.close()


def load_with_bar(checkpoint: str, family: str | None, overrides: list[str], device: str, precision: str) -> Model:
    """Load the model of a checkpoint, with a progress bar while it is downloaded."""
    return read_with_bar(checkpoint, family, overrides, device=device, precision=precision).model
