"""What only an extra installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vitviz.errors.kinds import ConfigError


@contextmanager
def extra(name: str, what: str = "this", package: str | None = None) -> Iterator[None]:
    """Imports of packages that an extra installs; where one is missing, the error says how to get it.

    Args:
        name: of the extra.
        what: needs them, as the message begins.
        package: the one that is meant; what else is missing is an error of its own. None for any.

    Raises:
        ConfigError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if package not in (None, missing):
            raise
        raise ConfigError(f"{what} needs {missing}: pip install 'vitviz[{name}]'") from None
