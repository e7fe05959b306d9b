"""The command ``vitviz completion``, which prints what completes the command in a shell."""

from __future__ import annotations

from pathlib import Path

import shtab

from vitviz.cli.grammar import file
from vitviz.cli.parsing import build


def run(shell: str) -> None:
    """Print the completion of a shell."""
    whole, parsers = build()
    for parser in parsers.values():
        for action in parser._actions:
            if action.type in (Path, file):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, shell))
