"""The library that reads and writes Parquet, which the extra ``batch`` installs."""

from __future__ import annotations

from typing import Any

from vitviz.errors.kinds import ConfigError


def arrow() -> tuple[Any, Any]:
    """pyarrow, and its part for Parquet.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigError("many pictures need pyarrow: install the extra, pip install 'vitviz[batch]'") from None
    return pyarrow, pyarrow.parquet
