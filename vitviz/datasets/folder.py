"""A folder that belongs to one request: an interrupted run resumes there, and only one run at a time writes into it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import listing
from vitviz.system.atomic import atomic_write

try:
    import fcntl
# Windows, where two runs of one folder at a time are the user's to avoid.
except ImportError:
    fcntl = None  # type: ignore[assignment]

REQUEST_FILE, PARTS_FOLDER, LOCK_FILE = "run.json", "parts", ".lock"


class RequestFolder:
    """A folder with a request and, below ``parts``, its results so far.

    Args:
        path: of the folder, which may be new.
        request: as JSON.
        kind: of run that writes here, for messages.

    Raises:
        ConfigError: the folder holds something else, or the results of another request.
    """

    def __init__(self, path: Path, request: dict[str, Any], kind: str) -> None:
        self.path, self.parts_folder, self.kind = path, path / PARTS_FOLDER, kind
        try:
            self.parts_folder.mkdir(parents=True, exist_ok=True)
            self._check(request)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None

    def _check(self, request: dict[str, Any]) -> None:
        file = self.path / REQUEST_FILE
        if not file.is_file():
            files = sorted(each.name for each in self.path.iterdir() if each.name not in (PARTS_FOLDER, LOCK_FILE))
            if files or any(self.parts_folder.iterdir()):
                raise ConfigError(
                    f"{self.path}: a folder with other files; expected an empty or new one, or that of a {self.kind}"
                )
            with atomic_write(file) as stream:
                stream.write(json.dumps(request, indent=1, ensure_ascii=False).encode(errors="backslashreplace"))
            return
        try:
            old = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            raise ConfigError(f"{file}: damaged; expected what a {self.kind} wrote, or an empty folder") from None
        new = json.loads(json.dumps(request))
        differences = [name for name in new if not isinstance(old, dict) or old.get(name) != new[name]]
        if differences:
            raise ConfigError(
                f"{self.path}: holds the results of another request, with other {listing(differences)}; "
                "expected the same request, or another folder"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder.

        Raises:
            ConfigError: another process holds it.
        """
        with (self.path / LOCK_FILE).open("w") as file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"{self.path}: another {self.kind} is writing there; expected one at a time"
                ) from None
            yield
