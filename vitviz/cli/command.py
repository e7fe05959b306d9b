"""The `vitviz` command: what it is given, where it goes, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from vitviz.cli.output import STANDARD, STREAMS, print_error, print_in_any_encoding, spelled
from vitviz.cli.parsing import parse
from vitviz.errors.kinds import VitvizError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0 for success, 1 for a checkpoint that is not verified or pictures that could not be analysed, 2 for an error, which
    is one line, 130 for an interrupt, 141 if whoever reads the output ends before it does.
    """
    print_in_any_encoding()
    resumes = ""
    try:
        try:
            command, options = parse(list(sys.argv[1:] if arguments is None else arguments))
            resumes = command.resumes
            STREAMS.quiet = options.pop("quiet")
            STREAMS.is_data = options.get("json", False) or str(options.get("output")) == STANDARD
            STREAMS.options = {name: (flag, command.separator(name)) for name, flag in command.options.items()}
            status: int | None = _function(command.run)(**options)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has enough. Python would complain when it flushes the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    # An OSError, such as a full disk or a port in use, is described well enough by its message.
    except (VitvizError, OSError) as error:
        print_error(spelled(str(error)))
        return 2
    except KeyboardInterrupt:
        continues = f"; the same command {resumes}" if resumes else ""
        print(f"\nvitviz: interrupted{continues}", file=sys.stderr)
        return 130
    return status or 0


def _function(name: str) -> Callable[..., int | None]:
    module, _, function = name.partition(":")
    return getattr(import_module(f"vitviz.cli.{module}"), function)
