"""The settings of the app's operator, as environment variables."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices
from vitviz.system.machine import memory
from vitviz.ui.server.hosts import frame_source, host_pattern, proxy_name
from vitviz.video.facts import ClipLimits

PREFIX = "VITVIZ_"
# The share of the machine's memory that the app takes by default, and the least with which it starts.
MEMORY_SHARE, MIN_BYTES = 0.75, 2 * 2**30
FRAMES_A_SECOND = 60
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
MODELS = {
    "all": "those of the menu, any of the hub, and uploaded files",
    "menu": "those of the menu",
    "start": "the one with which the page opens",
}
UPLOADS = {"all": "of every format", "safetensors": "safetensors alone"}


def size(text: str) -> int:
    """The number of bytes in a text such as ``4 GiB``."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?) ?([KMG]iB)?", text.strip(), re.ASCII)
    if match is None or float(match[1]) == 0:
        raise ValueError("a number of bytes above 0, such as 512 MiB or 4 GiB")
    return round(float(match[1]) * UNITS[match[2] or ""])


def size_text(count: int) -> str:
    """A number of bytes as :func:`size` reads it."""
    unit = next(unit for unit in reversed(UNITS) if count % UNITS[unit] == 0)
    return f"{count // UNITS[unit]} {unit}".strip()


def time(unit: str) -> Callable[[str], float]:
    """A function that reads a time above 0 in this unit."""

    def read(text: str) -> float:
        value = float(text) if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text.strip(), re.ASCII) else 0.0
        if not value > 0:
            raise ValueError(f"a number of {unit} above 0")
        return value

    return read


def count(of: str = "") -> Callable[[str], int]:
    """A function that reads a whole number above 0, such as one ``" of pixels"``."""

    def read(text: str) -> int:
        if re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII) is None or int(text) == 0:
            raise ValueError(f"a whole number{of} above 0")
        return int(text)

    return read


def one_of(legal: Mapping[str, str]) -> Callable[[str], str]:
    """A function that reads one of these names."""

    def read(text: str) -> str:
        if text.strip() not in legal:
            raise ValueError(choices(legal))
        return text.strip()

    return read


def names(check: Callable[[str], str]) -> Callable[[str], tuple[str, ...]]:
    """A function that reads names between commas and checks each."""

    def read(text: str) -> tuple[str, ...]:
        return tuple(check(name.strip()) for name in text.split(",") if name.strip())

    return read


def _legal_text(legal: Mapping[str, str]) -> str:
    return "; ".join(f"`{name}`: {text}" for name, text in legal.items())


def setting(default: Any, read: Callable[[str], Any], purpose: str, show: Callable[[Any], str] = str) -> Any:
    """A field with an environment variable: how its text is read, its purpose, and how its value is written."""
    return field(default=default, metadata={"read": read, "purpose": purpose, "show": show})


@dataclass(frozen=True)
class ServerSettings:
    """Limits and rules of the app; the metadata of each field has its purpose."""

    analysis_bytes: int = setting(MAX_BYTES, size, "the most memory that one analysis may need", size_text)
    cache_bytes: int | None = setting(
        None,
        size,
        "analyses that are kept in memory, of all visitors together; an eighth of the app's memory if unset",
        size_text,
    )
    model_bytes: int | None = setting(
        None,
        size,
        "models that are kept in memory, together, and the same for their text towers; one that would take more is "
        "not opened; a quarter of the app's memory if unset",
        size_text,
    )
    upload_bytes: int = setting(2 * 2**30, size, "the largest file that may be uploaded", size_text)
    clip_bytes: int = setting(100 * 2**20, size, "the largest clip that is opened", size_text)
    clip_seconds: float = setting(
        30.0,
        time("seconds"),
        f"the longest clip, of at most {FRAMES_A_SECOND} frames a second; of a longer one, the beginning is taken",
        "{:g}".format,
    )
    clip_pixels: int = setting(
        1920 * 1088, count(" of pixels"), "the largest frames of a clip that is opened, in pixels"
    )
    keep_hours: float = setting(
        12.0, time("hours"), "how long uploads and the files of the page stay on disk", "{:g}".format
    )
    files_bytes: int | None = setting(
        None,
        size,
        "uploads and the files of the page on disk, together; beyond it, the visitor who holds the most loses first "
        "what they used least lately; half of what is free on the disk if unset",
        size_text,
    )
    threads: int | None = setting(
        None, count(), "processors that torch computes with; as many as the container may use if unset"
    )
    memory_bytes: int | None = setting(
        None,
        size,
        "memory of the app with the processes that open pictures; three quarters of the memory of the machine or the "
        "container if unset",
        size_text,
    )
    models: str = setting("all", one_of(MODELS), f"models that may be opened: {_legal_text(MODELS)}")
    uploads: str = setting("all", one_of(UPLOADS), f"weights of strangers that may be opened: {_legal_text(UPLOADS)}")
    hosts: tuple[str, ...] | None = setting(
        None,
        names(host_pattern),
        "host names that the app answers, besides `localhost`, this machine's own and all addresses, such as "
        "`vit.example.org`; `*` for any",
    )
    trusted_proxies: tuple[str, ...] | None = setting(
        None,
        names(proxy_name),
        "addresses and networks of proxies whose forwarded headers are trusted, or the words `loopback` and "
        "`private`; `loopback` if unset, both on a Space",
    )
    frames: tuple[str, ...] | None = setting(
        None,
        names(frame_source),
        "origins whose pages may show the app in a frame, such as `https://example.org`; none if unset, "
        "those of Hugging Face on a Space",
    )

    @property
    def app_bytes(self) -> int:
        """The memory of the app.

        Raises:
            ConfigError: it is too little.
        """
        total = self.memory_bytes or int(MEMORY_SHARE * memory())
        if total < MIN_BYTES:
            raise ConfigError(f"{PREFIX}MEMORY_BYTES = {total:,}: expected at least {MIN_BYTES:,}")
        return total

    @property
    def kept_analysis_bytes(self) -> int:
        """The bound on the analyses that are kept."""
        return self.cache_bytes or self.app_bytes // 8

    @property
    def kept_model_bytes(self) -> int:
        """The bound on the models that are kept."""
        return self.model_bytes or self.app_bytes // 4

    @property
    def clip_limits(self) -> ClipLimits:
        """The limits of clips."""
        frames = math.ceil(self.clip_seconds * FRAMES_A_SECOND)
        return ClipLimits(self.clip_pixels, self.clip_bytes, frames, self.clip_seconds)

    @property
    def keep_seconds(self) -> int:
        return math.ceil(self.keep_hours * 3600)

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """The settings of the environment; a variable that is missing or empty has its default.

        Raises:
            ConfigError: a variable is not legal.
        """
        values = {}
        for setting_field in fields(cls):
            name = f"{PREFIX}{setting_field.name.upper()}"
            text = environment.get(name, "")
            if not text.strip():
                continue
            try:
                values[setting_field.name] = setting_field.metadata["read"](text)
            except ValueError as error:
                raise ConfigError(f"{name} = {text[:40]!r}: expected {error}") from None
        return cls(**values)


def table() -> str:
    """All variables with their defaults, in Markdown."""
    rows = ["| variable | default | what it sets |", "| --- | --- | --- |"]
    for setting_field in fields(ServerSettings):
        default = "" if setting_field.default is None else f"`{setting_field.metadata['show'](setting_field.default)}`"
        rows.append(f"| `{PREFIX}{setting_field.name.upper()}` | {default} | {setting_field.metadata['purpose']} |")
    return "\n".join(rows)
