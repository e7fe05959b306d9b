"""The import of pyarrow, which the extra ``batch`` installs."""

from __future__ import annotations

from typing import Any

from vitviz.errors.extras import optional


def arrow() -> tuple[Any, Any]:
    """The modules ``pyarrow`` and ``pyarrow.parquet``.

    Raises:
        ConfigError: it is not installed.
    """
    with optional("a folder of pictures"):
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    return pyarrow, pyarrow.parquet
