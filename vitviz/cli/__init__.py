"""The command ``vitviz``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status, as :func:`vitviz.cli.command.main` does."""
    try:
        # Imported here, since an interrupt may come before all is imported.
        from vitviz.cli.command import main as run
    except KeyboardInterrupt:
        print("\nvitviz: interrupted", file=sys.stderr)
        return 130
    return run(arguments)
