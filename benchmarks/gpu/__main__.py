"""The command behind ``benchmarks/gpu.sh``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import torch

from benchmarks.gpu import folders, right, speed, training
from benchmarks.gpu.card import MISSED, Card
from benchmarks.gpu.networks import import_packages
from benchmarks.gpu.table import page, rows_of

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
    import_packages()
    if card.small:
        # Threads of a pool would not survive the fork, and gain nothing on tiny shapes.
        torch.set_num_threads(1)
    for name in arguments.only:
        run_part(card, name, deadline - monotonic())
    rows = rows_of(card.results)
    (card.output / "gpu.md").write_text(page(rows, card.facts()))
    print((card.output / "gpu.md").read_text())
    wrong = [row for row in rows if row["table"] in right.TABLES and MISSED in str(row["cells"])]
    return int(any(wrong) or any(row["table"] == FAILURES for row in rows))


def run_part(card: Card, name: str, seconds_left: float) -> None:
    """Run a part in a process of its own, so that its failure or its slowness costs the others nothing."""
    measure, limit = PARTS[name]
    # Forked before anything uses the card, it has all packages imported.
    process = multiprocessing.get_context("fork").Process(target=_run, args=(card, name, measure))
    start = monotonic()
    process.start()
    process.join(max(1.0, min(limit, seconds_left)))
    if process.is_alive():
        process.kill()
        card.add(FAILURES, name, {"reason": f"ended after {monotonic() - start:.0f} seconds"})
    elif process.exitcode:
        card.add(FAILURES, name, {"reason": f"exit status {process.exitcode}; see {name}.log"})
    print(f"{name}: {monotonic() - start:.1f} seconds", flush=True)


def _run(card: Card, name: str, measure: Callable[[Card], None]) -> None:
    try:
        measure(card)
    except BaseException:
        (card.output / f"{name}.log").write_text(traceback.format_exc())
        traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
