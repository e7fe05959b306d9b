"""The device under test: its clock, its memory and its rows of results."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.benchmark import Run, time_of
from benchmarks.tables import machine, significant
from vitviz import LimitError

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

    def add(self, table: str, row: str, cells: Mapping[str, str | float]) -> None:
        """Add a row of a table, at once."""
        texts = {name: each if isinstance(each, str) else significant(each) for name, each in cells.items()}
        with self.results.open("a") as stream:
            stream.write(json.dumps({"table": table, "row": row, "cells": texts}) + "\n")
        print(f"{table} | {row} | {', '.join(f'{name}: {value}' for name, value in texts.items())}", flush=True)

    def clock(self) -> float:
        """The time when the card has done all its work."""
        if not self.small:
            torch.cuda.synchronize()
        return perf_counter()

    def seconds(self, run: Run) -> float:
        """The duration of one run, until the card has done its work."""
        return time_of(run, self.clock)

    def turns(self, runs: Mapping[str, Run]) -> dict[str, float]:
        """The median seconds of each run, which take turns; one that does not fit into the memory is left out."""
        firsts = {name: self.attempt(run) for name, run in runs.items()}
        durations = {name: [first] for name, first in firsts.items() if first is not None}
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
            # Memory that torch keeps for later goes back to the card.
            torch.cuda.empty_cache()

    def peak_bytes(self, run: Run) -> int | None:
        """The most bytes of the card that a run takes beyond those in use; None where nobody counts them."""
        if self.small:
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.seconds(run)
        return torch.cuda.max_memory_allocated() - before

    def facts(self) -> dict[str, object]:
        """Name, driver and versions."""
        if self.small:
            return {**machine()}
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
        card = torch.cuda.get_device_properties(0)
        device = f"{card.name}, {card.total_memory / 2**30:.0f} GiB"
        return {"device": device, "driver": f"{driver}, CUDA {torch.version.cuda}", **machine()}


def held_to(value: float, limit: float, is_most: bool = True) -> str:
    """A number with a mark that says whether it keeps a limit, the most or the least that it may be."""
    keeps = value <= limit if is_most else value >= limit
    return f"{significant(value)} {MET if keeps else MISSED}"
