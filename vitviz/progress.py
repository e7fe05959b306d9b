"""The progress of a long computation, and of a download."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Progress:
    """How many steps are ``done`` of the ``total``; the function that reports it defines a step."""

    done: int
    total: int


@dataclass(frozen=True)
class DownloadProgress:
    """The progress of a download.

    Attributes:
        repository: "owner/name".
        done: bytes of all files that have arrived.
        total: bytes of all files; None if the hub does not state them.
    """

    repository: str
    done: int
    total: int | None


@contextmanager
def shown_bar(text: str, total: int) -> Iterator[Callable[[Progress], Any]]:
    """A function that shows progress on a terminal or in a notebook, after a second."""
    from tqdm import tqdm

    # Where it is seen, the environment may still disable it.
    with tqdm(
        desc=text,
        total=total,
        delay=1,
        leave=False,
        **({} if "ipykernel" in sys.modules or (sys.stderr and sys.stderr.isatty()) else {"disable": True}),
    ) as bar:
        yield lambda progress: bar.update(progress.done - bar.n)
