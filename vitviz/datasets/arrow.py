"""The library that reads and writes Parquet, which the extra ``batch`` installs."""

from __future__ import annotations

from typing import Any

from vitviz.errors.extras import extra


def arrow() -> tuple[Any, Any]:
    """pyarrow, and its part for Parquet.

    Raises:
        ConfigError: it is not installed.
    """
    with extra("batch", "a folder of pictures"):
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    return pyarrow, pyarrow.parquet
