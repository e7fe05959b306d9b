"""Imports of packages that only an extra installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vitviz.errors.kinds import ConfigError


@contextmanager
def extra(name: str, feature: str = "this", package: str | None = None) -> Iterator[None]:
    """Context for imports of packages of an extra; if one is missing, the error says how to install it.

    Args:
        name: of the extra.
        feature: what needs the packages, the subject of the message.
        package: the only package whose absence is explained; None for any.

    Raises:
        ConfigError: a package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if package not in (None, missing):
            raise
        raise ConfigError(f"{feature} needs {missing}: pip install 'vitviz[{name}]'") from None
