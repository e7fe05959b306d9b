"""The `vitviz` command: what it is given, where it goes, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vitviz.cli.parsing import parse
from vitviz.cli.printing import OUTPUT_NAMES, STANDARD, STREAMS, flush_output, open_streams, print_error, spelled
from vitviz.errors.kinds import VitvizError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0 for success, 1 for a checkpoint that is not verified or pictures that could not be analysed, 2 for an error, which
    is one line, 130 for an interrupt, 141 if whoever reads the output ends before it does.
    """
    open_streams()
    try:
        try:
            command, options = parse(list(sys.argv[1:] if arguments is None else arguments))
            STREAMS.quiet = options.pop("quiet")
            if STREAMS.quiet:
                # Of packages, which import it later.
                os.environ["TQDM_DISABLE"] = "1"
            if (pixels := options.pop("max_pixels", None)) is not None:
                from PIL import Image

                Image.MAX_IMAGE_PIXELS = pixels
            if "output" in command.options and str(options["output"]) in OUTPUT_NAMES:
                options["output"] = type(options["output"])(STANDARD)
            STREAMS.is_data = options.get("json", False) or str(options.get("output")) == STANDARD
            STREAMS.options = {name: (flag, command.separator(name)) for name, flag in command.options.items()}
            module, _, function = command.run.partition(":")
            status: int | None = getattr(import_module(f"vitviz.cli.{module}"), function)(**options)
        finally:
            flush_output()
    # Whoever reads has enough.
    except BrokenPipeError:
        return 141
    # An OSError, such as a full disk, is described well enough by its message.
    except (VitvizError, OSError) as error:
        print_error(spelled(str(error)))
        return 2
    except KeyboardInterrupt:
        print("\nvitviz: interrupted", file=sys.stderr)
        return 130
    return status or 0
