"""What only an extra installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vitviz.errors.kinds import ConfigError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Imports of packages that an extra installs; where one is missing, the error says how to get it.

    Raises:
        ConfigError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"this needs {error.name}: pip install 'vitviz[{name}]'") from None
