"""The progress of a long computation, and of a download."""

from __future__ import annotations

import sys
from collections.abc import Iterable
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


def progress_bar(text: str, items: Iterable[Any] | None = None, total: int | None = None, **options: Any) -> Any:
    """A bar of tqdm's over items, or of so many steps, on a terminal or in a notebook, after a second."""
    from tqdm import tqdm

    # Where it is seen, the environment may still disable it.
    is_hidden = "ipykernel" not in sys.modules and not (sys.stderr and sys.stderr.isatty())
    return tqdm(items, text, total, delay=1, leave=False, **options, **({"disable": True} if is_hidden else {}))
