"""The command: ``python -m tests.parity.coverage RESULTS.jsonl``."""

from __future__ import annotations

import argparse
import json
import re
import signal
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import torch

from tests.parity.coverage import __doc__ as description
from tests.parity.coverage.subject import Subject, forget, looked_at
from tests.parity.coverage.table import rows_of, tables

PACKAGES = ("timm", "transformers", "open_clip")
# Of processor time, for one architecture.
MAX_SECONDS = 120


class TooLong(BaseException):
    """No error of a module's, which vitviz would report as one."""


def stop(*_: object) -> None:
    raise TooLong


def look(file: Path, package: str, only: str | None) -> None:
    """Look at what does not stand in the file yet, or at names that match, and write a line for each."""
    done = {row["name"] for row in rows_of(file) if row["package"] == package}
    subjects: Iterator[Subject] = import_module(f"tests.parity.coverage.{package}_subjects").subjects()
    for subject in subjects:
        wanted = subject.name not in done if only is None else re.search(only, subject.name) is not None
        if not wanted:
            continue
        torch.manual_seed(0)
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        try:
            row = looked_at(subject)
        except TooLong:
            row = {"package": package, "group": subject.group, "name": subject.name, "result": "not run"}
            row["reason"] = f"takes more than {MAX_SECONDS} s of processor time"
        # Where vitviz itself fails, which no architecture may bring about.
        except Exception as error:
            row = {"package": package, "group": subject.group, "name": subject.name, "result": "error"}
            row["reason"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        with file.open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        print(row["name"], row["result"], row.get("weights"), row.get("reason", "")[:200], flush=True)
        forget()


def main() -> None:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("file", type=Path)
    parser.add_argument("--package", choices=PACKAGES, default="timm")
    parser.add_argument("--only", help="pattern of names that are looked at again")
    parser.add_argument("--table", action="store_true", help="print the tables instead")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    signal.signal(signal.SIGPROF, stop)
    if options.table:
        print(tables(options.file))
    else:
        look(options.file, options.package, options.only)


main()
