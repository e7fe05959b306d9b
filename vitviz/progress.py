"""The progress of a long computation, and of a download."""

from __future__ import annotations

from dataclasses import dataclass


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
