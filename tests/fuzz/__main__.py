"""``python -m tests.fuzz TARGET --seconds 600 --seed 7``"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.targets import TARGETS, Case, draw_case, findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Look for input that costs too much.")
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run the case of this number and write its inputs to a folder")
    options = parser.parse_args()
    wrong = 0
    for target in TARGETS if options.target == "all" else [options.target]:
        command, cases = f"python -m tests.fuzz {target} --seed {options.seed} --only", 0
        some = {} if options.only is None else {"first": options.only, "count": 1}
        end = time.monotonic() + options.seconds
        for number, why in findings(target, options.seed, **{"first": 0, "end": end, **some}):
            cases += 1
            if some:
                write_inputs(draw_case(target, options.seed, number), f"{options.seed}-{number}")
            if why:
                wrong += 1
                print(f"{target}: {why} ({command} {number})", flush=True)
        print(f"{target}: {cases:,} cases", flush=True)
    return wrong > 0


def write_inputs(case: Case, prefix: str) -> None:
    for place, content in enumerate(case.inputs):
        file = Path(f"{prefix}-{place}-{case.name or 'value.txt'}")
        file.write_bytes(content if isinstance(content, bytes) else repr(content).encode("utf-8", "surrogatepass"))
        print(file)


if __name__ == "__main__":
    sys.exit(main())
