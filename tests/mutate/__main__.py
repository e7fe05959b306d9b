"""``python -m tests.mutate --map``, then ``python -m tests.mutate --count 100 --seed 0 --jobs 2``"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.mutate import places, reach, runs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutate"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description="Change the code; a test should fail.")
    parser.add_argument("paths", nargs="*", type=Path, help="of files and folders with the places; default: vitviz")
    parser.add_argument("--map", action="store_true", help="run the whole suite, and keep which test ran which line")
    parser.add_argument("--list", action="store_true", help="print the places that are drawn, and change nothing")
    parser.add_argument("--count", type=int, default=100, help="of places")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a copy of the working tree")
    parser.add_argument("--tests", type=int, default=reach.MAX_TESTS, help="of a place, unless more files have one")
    parser.add_argument("--seconds", type=float, default=runs.MAX_SECONDS, help="the most that a run may take")
    parser.add_argument("--state", type=Path, help="file of verdicts; default: build/mutate/seed-SEED.jsonl")
    options = parser.parse_args()
    if options.map:
        return reach.make(ROOT, FOLDER)
    drawn = places.draw(ROOT, options.count, options.seed, options.paths)
    if options.list:
        print("\n".join(place.describe() for place in drawn))
        return 0
    state = options.state or FOLDER / f"seed-{options.seed}.jsonl"
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        known = reach.Reach(FOLDER, ROOT, options.tests)
        trees = runs.Trees(ROOT, Path(folder), known, options.jobs, options.seconds)
        verdicts = runs.judge(drawn, state, trees.verdict, options.jobs)
    missed = [place for place in drawn if not verdicts[place.identity]["noticed"]]
    print(f"\nnoticed: {len(drawn) - len(missed)} of {len(drawn)} ({1 - len(missed) / max(1, len(drawn)):.0%})")
    print("\n".join(f"{place.describe()} ({verdicts[place.identity]['how']})" for place in missed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
