"""The command behind ``benchmarks/gpu.sh``."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.gpu import folders, right, speed, training
from benchmarks.gpu.card import MISSED, Card
from benchmarks.networks import package
from benchmarks.tables import table

ROOT = Path(__file__).parents[2]
# In the order of their worth, with the seconds after which each is ended.
PARTS: dict[str, tuple[Callable[[Card], None], float]] = {
    "right": (right.measure, 150),
    "speed": (speed.measure, 240),
    "folders": (folders.measure, 100),
    "training": (training.measure, 60),
}
MAX_SECONDS = 450
FAILURES = "Parts that did not end"
INTRODUCTION = """# On a graphics card

`benchmarks/gpu.sh` checks vitviz on a CUDA card against the processor, measures speed and memory, and writes this page;
the first lines of the script say what it needs. Times are medians of runs that take turns, from the call until the card
has done its work.

A mark says whether a number keeps a limit, ✓ or ✗. A number without a mark has no limit, and – was not measured:

- differences, as shares of the highest value: 1e-4 in float32, 0.05 in bfloat16, and 20 times as much for probes and
  scales;
- an analysis, which is logits and trace of a batch: 1.2 forward passes of the reference, 1.5 for a single picture of
  fewer than 1,370 tokens;
- memory at 1,370 tokens: a quarter of what `output_attentions=True` takes;
- a folder: 0.9 of the rate of its slower stage, opening or forward pass.

The *bundled* model ships with vitviz; *S/14* has random weights, once copied into vitviz's own engine and once captured
as a module. Where timm is missing, transformers is the reference. Costs of methods are
multiples of the forward pass too, and come on top of the analysis; *picture to analysis* begins with an array.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.sh", description=__doc__)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="for the results; the default is build/gpu")
    parser.add_argument("--small", action="store_true", help="try everything out on a processor, with tiny shapes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="parts to run")
    arguments = parser.parse_args()
    card = Card((arguments.output or ROOT / "build" / "gpu").absolute(), arguments.small)
    card.output.mkdir(parents=True, exist_ok=True)
    card.results.unlink(missing_ok=True)
    deadline = monotonic() + MAX_SECONDS
    # They take seconds, once for all parts.
    for name in filter(find_spec, ("timm", "transformers")):
        package(name)
    if card.small:
        # Threads of a pool would not survive the fork, and gain nothing on tiny shapes.
        torch.set_num_threads(1)
    for name in arguments.only:
        run_part(card, name, deadline - monotonic())
    tables = tables_of(card.results)
    (card.output / "gpu.md").write_text(page(tables, card.facts()))
    print((card.output / "gpu.md").read_text())
    return int(FAILURES in tables or any(MISSED in str(tables.get(name)) for name in right.TABLES))


def tables_of(results: Path) -> dict[str, dict[str, dict[str, str]]]:
    """Cells by column, row and table, of a file of JSON lines."""
    tables: dict[str, dict[str, dict[str, str]]] = {}
    for line in results.read_text().splitlines() if results.exists() else ():
        row: dict[str, Any] = json.loads(line)
        tables.setdefault(row["table"], {})[row["row"]] = row["cells"]
    return tables


def page(tables: Mapping[str, Mapping[str, Mapping[str, str]]], facts: Mapping[str, object]) -> str:
    lines = [INTRODUCTION, *(f"- {name}: {value}" for name, value in facts.items())]
    for title, rows in tables.items():
        lines += ["", f"## {title}", "", *table(rows, empty="–")]
    return "\n".join([*lines, ""])


def run_part(card: Card, name: str, seconds_left: float) -> None:
    """Run a part in a process of its own, so that its failure or its slowness costs the others nothing."""
    measure, limit = PARTS[name]
    # Forked before anything uses the card, it has all packages imported.
    process = multiprocessing.get_context("fork").Process(target=_run, args=(card, name, measure))
    start = monotonic()
    process.start()
    process.join(max(1.0, min(limit, seconds_left)))
    seconds = f"{monotonic() - start:.1f} seconds"
    if process.is_alive():
        process.kill()
        card.add(FAILURES, name, {"reason": f"ended after {seconds}"})
    elif process.exitcode:
        card.add(FAILURES, name, {"reason": f"exit status {process.exitcode}; see {name}.log"})
    print(f"{name}: {seconds}", flush=True)


def _run(card: Card, name: str, measure: Callable[[Card], None]) -> None:
    try:
        measure(card)
    except BaseException:
        (card.output / f"{name}.log").write_text(traceback.format_exc())
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
