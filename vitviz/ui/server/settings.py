"""The settings of the app's operator, as environment variables."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, ValidationError

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import nearest
from vitviz.images.isolated_pictures import LIMITS
from vitviz.system.machine import memory
from vitviz.ui.environment import LOOPBACK as LOOPBACK_HOSTS
from vitviz.ui.server.hosts import SPACE_ID, networks
from vitviz.video.clip_facts import ClipLimits
from vitviz.weights import BUNDLED, ZOO

PREFIX = "VITVIZ_"
# The share of the machine's memory that the app takes by default.
MEMORY_SHARE = 0.75
FRAMES_A_SECOND = 60
# Former variables, and what says now what they said.
FORMER = {
    "MODELS": "visitors of a shared app open the models of its operator: vitviz app MODEL OTHER …",
    "UPLOADS": "visitors of a shared app send no models: remove the variable",
}
Bytes: TypeAlias = Annotated[ByteSize, Field(gt=0, lt=2**60)]
Count: TypeAlias = Annotated[int, Field(gt=0, lt=10**9)]
Time: TypeAlias = Annotated[float, Field(gt=0, lt=10**6)]
BETWEEN_COMMAS = BeforeValidator(
    lambda text: [name.strip() for name in text.split(",") if name.strip()] if isinstance(text, str) else text
)


def _menu_name(text: str) -> str:
    if text not in ("start", "none", *BUNDLED, *ZOO):
        raise ValueError("start, none, or names of the menu, such as vit_small_patch16")
    return text


class ServerSettings(BaseModel):
    """Limits and rules of the app; the description of each field has its purpose."""

    model_config = ConfigDict(frozen=True)

    memory_bytes: Bytes = Field(
        default_factory=lambda: ByteSize(MEMORY_SHARE * memory()),
        ge=2**30,
        description="[memory of the app](#memory) with the processes that open pictures",
    )
    analysis_bytes: Bytes = Field(default=ByteSize(MAX_BYTES), description="the most memory for one analysis")
    cache_bytes: Bytes = Field(
        default_factory=lambda known: ByteSize(known["memory_bytes"] // 8),
        description="[what is kept in memory](#what-is-kept) for all visitors; an eighth of the app's if unset",
    )
    model_bytes: Bytes = Field(
        default_factory=lambda known: ByteSize(known["memory_bytes"] // 4),
        description="models opened in the page, together; a larger one is refused; a quarter of the app's memory if "
        "unset",
    )
    upload_bytes: Bytes = Field(default=ByteSize(2 * 2**30), description="the largest upload")
    clip_bytes: Bytes = Field(default=ByteSize(100 * 2**20), description="the largest clip")
    clip_seconds: Time = Field(
        default=30.0,
        description=f"of a clip of at most {FRAMES_A_SECOND} frames a second; of a longer one, the beginning is taken",
    )
    clip_pixels: Count = Field(default=1920 * 1088, description="pixels of its largest frames")
    keep_hours: Time = Field(default=12.0, description="how long files stay on disk")
    files_bytes: Bytes | None = Field(
        default=None,
        description="files on disk, together, [as what is kept](#what-is-kept); half of what is free if unset",
    )
    threads: Count | None = Field(
        default=None, description="processors for torch; as many as the container may use if unset"
    )
    shared: bool | None = Field(
        default=None,
        description="`1`: strangers use the app, `0`: its owner alone; [by where it listens](#alone-or-shared) if "
        "unset",
    )
    api: bool = Field(
        default=True,
        description="`0` leaves out the [endpoints for programs](app.md#the-api), MCP among them; the page needs none",
    )
    device_models: Annotated[tuple[Annotated[str, AfterValidator(_menu_name)], ...] | None, BETWEEN_COMMAS] = Field(
        default=None,
        description="models that visitors may [run on their own device](no-server.md#from-the-app), which get their "
        "weights: names of the menu, `start` for the first, or `none`; the bundled one if unset",
    )
    hosts: Annotated[tuple[str, ...] | None, BETWEEN_COMMAS] = Field(
        default=None,
        description="host names that the app answers besides [its own](#hosts-and-origins), such as "
        "`vit.example.org`; `*` for any",
    )
    trusted_proxies: Annotated[Annotated[tuple[str, ...], AfterValidator(networks)] | None, BETWEEN_COMMAS] = Field(
        default=None,
        description="addresses and networks of proxies whose forwarded headers are trusted, or `loopback` and "
        "`private`; none if unset, both on a Space",
    )
    frames: Annotated[tuple[str, ...] | None, BETWEEN_COMMAS] = Field(
        default=None,
        description="origins that may show the app in a frame, such as `https://example.org`; none if unset, Hugging "
        "Face's on a Space",
    )

    def is_shared(self, host: str = LOOPBACK_HOSTS[0], *, has_tunnel: bool = False) -> bool:
        """Whether strangers may come to an app that listens on a host."""
        if self.shared is not None:
            return self.shared
        return (
            host.strip("[]") not in LOOPBACK_HOSTS
            or has_tunnel
            or bool(os.environ.get(SPACE_ID) or self.trusted_proxies)
        )

    def check_memory(self, used_bytes: int) -> None:
        """Check that the app, what it keeps, and one picture that arrives fit into its memory together.

        Args:
            used_bytes: by the app with its models.

        Raises:
            ConfigError: they do not.
        """
        needed = used_bytes + self.cache_bytes + LIMITS.memory_bytes
        if needed > self.memory_bytes:
            raise ConfigError(
                f"{PREFIX}MEMORY_BYTES = {self.memory_bytes:,}: expected at least {needed:,}: {used_bytes:,} for the "
                f"app with its models, {self.cache_bytes:,} for what is kept ({PREFIX}CACHE_BYTES) and "
                f"{LIMITS.memory_bytes:,} for a picture that is opened"
            )

    @property
    def clip_limits(self) -> ClipLimits:
        """The limits of clips."""
        return ClipLimits(
            pixels=self.clip_pixels,
            nbytes=self.clip_bytes,
            frames=math.ceil(self.clip_seconds * FRAMES_A_SECOND),
            seconds=self.clip_seconds,
        )

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> ServerSettings:
        """The settings of the environment; a variable that is missing or empty has its default.

        Raises:
            ConfigError: a variable is not legal, or its name is that of a setting but for some letters.
        """
        names = [name.upper() for name in cls.model_fields]
        for name in sorted({each.removeprefix(PREFIX) for each in environment if each.startswith(PREFIX)} - {*names}):
            # Names that are less similar may be of other programs.
            if environment[PREFIX + name].strip() and ((meant := nearest(name, names, 0.8)) or name in FORMER):
                raise ConfigError(f"{PREFIX}{name} is no setting: {FORMER.get(name, f'did you mean {PREFIX}{meant}?')}")
        texts = {name: ascii(environment.get(f"{PREFIX}{name.upper()}", "").strip())[1:-1] for name in cls.model_fields}
        try:
            return cls.model_validate({name: text for name, text in texts.items() if text})
        except ValidationError as refused:
            [error, *_] = refused.errors()
            variable = f"{PREFIX}{str(error['loc'][0]).upper()}"
            reason = error["msg"].replace("Input should be", "expected").replace("Value error, ", "expected ")
            if "byte_size" in error["type"]:
                reason = "expected a size above 0, such as 512 MiB or 4 GiB"
            raise ConfigError(f"{variable} = {error['input'][:40]!r}: {reason}") from None
