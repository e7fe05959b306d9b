"""A folder that belongs to one request: a run that is ended goes on there, and no other run writes into it."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import listing
from vitviz.weights.formats.atomic import atomic_write

RUN, PARTS, LOCK = "run.json", "parts", ".lock"


class RequestFolder:
    """A folder with a request, and below ``parts`` what answers it so far.

    Args:
        path: of the folder, which may be new.
        request: as JSON.
        kind: of run that writes here, for messages.

    Raises:
        ConfigError: the folder holds something else, or the answers to another request.
    """

    def __init__(self, path: Path, request: dict[str, Any], kind: str) -> None:
        self.path, self.parts, self.kind = path, path / PARTS, kind
        try:
            self.parts.mkdir(parents=True, exist_ok=True)
            self._check(request)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None

    def _check(self, request: dict[str, Any]) -> None:
        file = self.path / RUN
        if not file.is_file():
            others = sorted(each.name for each in self.path.iterdir() if each.name not in (PARTS, LOCK))
            if others or any(self.parts.iterdir()):
                raise ConfigError(
                    f"{self.path}: a folder with other files; expected an empty or new one, or that of a {self.kind}"
                )
            with atomic_write(file) as stream:
                stream.write(json.dumps(request, indent=1, ensure_ascii=False).encode())
            return
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise ConfigError(f"{file}: damaged; expected what a {self.kind} wrote, or an empty folder") from None
        now = json.loads(json.dumps(request))
        other = [name for name in now if not isinstance(before, dict) or before.get(name) != now[name]]
        if other:
            raise ConfigError(
                f"{self.path}: holds the results of another request, with other {listing(other)}; "
                "expected the same request, or another folder"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While nobody else writes here.

        Raises:
            ConfigError: somebody does.
        """
        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"{self.path}: another {self.kind} is writing there; expected one at a time"
                ) from None
            yield
