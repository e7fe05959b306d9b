"""The device under test: its clock, its memory, its rates and its rows of results."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from vitviz import LimitError

Run = Callable[[], object]
Cells = Mapping[str, str | float | None]
PACKAGES = ("torch", "numpy", "einops", "timm", "transformers", "captum", "pyarrow", "tensorboard", "huggingface_hub")
# A measurement ends after so many seconds, or runs.
MAX_SECONDS, MAX_RUNS = 0.4, 15
MET, MISSED = "✓", "✗"


@dataclass(frozen=True)
class Card:
    """A graphics card, or with ``small`` a processor that stands in for one, on tiny shapes.

    Args:
        output: folder for the results.
        small: whether to try everything out on a processor; the numbers then mean nothing.
    """

    output: Path
    small: bool = False

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.small else "cuda")

    @property
    def results(self) -> Path:
        """The file to which every part adds its rows."""
        return self.output / "gpu.jsonl"

    def add(self, table: str, row: str, cells: Cells) -> None:
        """Add a row of a table, at once."""
        with self.results.open("a") as stream:
            stream.write(json.dumps({"table": table, "row": row, "cells": dict(cells)}) + "\n")
        print(f"{table} | {row} | {', '.join(f'{name}: {text(value)}' for name, value in cells.items())}", flush=True)

    def wait(self) -> None:
        """Wait until the card has done all its work."""
        if not self.small:
            torch.cuda.synchronize()

    def seconds(self, run: Run) -> float:
        """The duration of one run, until the card has done its work."""
        self.wait()
        start = perf_counter()
        result = run()
        self.wait()
        duration = perf_counter() - start
        del result
        return duration

    def turns(self, runs: Mapping[str, Run]) -> dict[str, float]:
        """The median seconds of each run, which take turns; one that does not fit into the memory is left out."""
        durations: dict[str, list[float]] = {}
        for name, run in runs.items():
            if (first := self.attempt(run)) is not None:
                durations[name] = [first]
        for _ in range(1 if self.small else MAX_RUNS):
            for name, before in durations.items():
                if sum(before) < MAX_SECONDS:
                    before.append(self.seconds(runs[name]))
        return {name: statistics.median(each) for name, each in durations.items()}

    def attempt(self, run: Run) -> float | None:
        """The seconds of a run after one that warms up, or None if it does not fit into the card's memory."""
        try:
            first = self.seconds(run)
            return first if first > 5 * MAX_SECONDS else self.seconds(run)
        except (torch.OutOfMemoryError, LimitError):
            return None
        finally:
            self.release()

    def peak_bytes(self, run: Run) -> int | None:
        """The most bytes of the card that a run takes beyond those in use; None where nobody counts them."""
        if self.small:
            return None
        self.release()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        self.wait()
        del result
        return torch.cuda.max_memory_allocated() - before

    def release(self) -> None:
        """Give memory that torch keeps for later back to the card."""
        if not self.small:
            torch.cuda.empty_cache()

    def facts(self) -> dict[str, str]:
        """Name, driver and versions."""
        facts = {"device": platform.processor() or platform.machine(), "processor cores": str(os.cpu_count())}
        if not self.small:
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
            properties = torch.cuda.get_device_properties(0)
            facts["device"] = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
            facts["driver"] = f"{driver}, CUDA {torch.version.cuda}"
        return {**facts, "Python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def text(value: str | float | None) -> str:
    """A cell of a table: text as it is, numbers with three digits that count."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def held_to(value: float, limit: float, is_most: bool = True) -> str:
    """A number with a mark that says whether it keeps a limit, the most or the least that it may be."""
    keeps = value <= limit if is_most else value >= limit
    return f"{text(value)} {MET if keeps else MISSED}"


def quiet(make: Callable[[], Any]) -> Any:
    """The result of a function that imports or makes what warns about itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
