"""Data sets of the Hugging Face hub, or local ones of its package ``datasets``, read as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vitviz.datasets.true_classes import class_in
from vitviz.errors.extras import optional
from vitviz.errors.kinds import DataError
from vitviz.errors.messages import choices

HUB_PREFIX = "hf:datasets/"
SOURCE_FORMAT = f"{HUB_PREFIX}OWNER/NAME:SPLIT of the Hugging Face hub, or {HUB_PREFIX}FOLDER:SPLIT"


def hub_cells(source: str, column: str, label: str) -> Iterator[tuple[str, Any, str | None]]:
    """The pictures of a split, not decoded, each with a key that is the same every time, and its class.

    Rows are downloaded one after another as they are read. No code of a data set runs.

    Args:
        source: as :data:`SOURCE_FORMAT`.
        column: the column with the pictures.
        label: the column with their classes, if there is one.

    Raises:
        ConfigError: the package is not installed.
        DataError: there is no such data set, split or column, the column holds no pictures, or it cannot be read.
    """
    with optional("a data set of the hub"):
        import datasets
    name, _, split = source.removeprefix(HUB_PREFIX).rpartition(":")
    if not name:
        raise DataError(f"{source}: no split is named; expected {SOURCE_FORMAT}")
    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        if rows.features is None:
            rows = rows._resolve_features()
        if column not in rows.features:
            raise DataError(f"{source}: no column {column!r}; expected --column with one of {choices(rows.features)}")
        names = getattr(rows.features.get(label), "names", ())
        rows = rows.select_columns([column, *{label} & set(rows.features) - {column}])
        if isinstance(rows.features[column], datasets.Image):
            rows = rows.cast_column(column, datasets.Image(decode=False))
        for number, row in enumerate(rows):
            yield f"{split}#{number}", row[column], class_in(row.get(label), names)
    except DataError:
        raise
    # The package and its dependencies raise dozens of kinds of errors.
    except Exception as error:
        sentence = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"{source}: cannot be read ({sentence}); expected {SOURCE_FORMAT}") from None
