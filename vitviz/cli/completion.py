"""The command ``vitviz completion``, which prints what completes the command in a shell."""

from __future__ import annotations

import shtab

from vitviz.cli.grammar import file
from vitviz.cli.parsing import build
from vitviz.system.paths import user_path


def run(shell: str) -> None:
    """Print the completion of a shell."""
    whole, parsers = build()
    for parser in parsers.values():
        for action in parser._actions:
            if action.type in (user_path, file):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, shell))
