"""``python -m tests.fuzz TARGET --seconds 600 --seed 7``"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.targets import TARGETS, draw_case, watched_findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Look for input that costs too much.")
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run the case of this number and write its inputs to a folder")
    options = parser.parse_args()
    targets = list(TARGETS) if options.target == "all" else [options.target]
    if options.only is not None:
        return _one(targets[0], options.seed, options.only)
    wrong = 0
    for target in targets:
        cases = 0
        for number, why in watched_findings(target, options.seed, 0, end=time.monotonic() + options.seconds):
            cases += 1
            if why:
                wrong += 1
                print(
                    f"{target}: {why} (python -m tests.fuzz {target} --seed {options.seed} --only {number})", flush=True
                )
        print(f"{target}: {cases:,} cases", flush=True)
    return wrong > 0


def _one(target: str, seed: int, number: int) -> int:
    case = draw_case(target, seed, number)
    for place, content in enumerate(case.inputs):
        name = f"{seed}-{number}-{place}-{case.name or 'value.txt'}"
        with open(name, "wb") as file:
            file.write(content if isinstance(content, bytes) else repr(content).encode("utf-8", "surrogatepass"))
        print(name)
    [(_, why)] = watched_findings(target, seed, number, 1)
    print(why or "nothing is wrong with it")
    return bool(why)


if __name__ == "__main__":
    sys.exit(main())
