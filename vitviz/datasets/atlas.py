"""Statistics of a model over the results of a batch: its heads, its mean maps, and the pictures that stand out.

DuckDB reads the table, so that sums and rankings work on tables larger than memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from vitviz.datasets.arrow import arrow
from vitviz.datasets.output import part_paths, read_request
from vitviz.datasets.request import SCHEMA_VERSION
from vitviz.datasets.rows import THUMBNAIL
from vitviz.errors.extras import optional
from vitviz.errors.kinds import ConfigError, DataError
from vitviz.system.paths import user_path

CONFIDENCE = 0.95
# The unit of measures that lie in [0, 1].
SHARE = "share"
MEMORY_BYTES = 512 * 2**20
# How many pictures stand out for each head and measure, and how many classes get a mean map: the most frequent ones.
PICTURES_PER_HEAD, MAX_CLASSES = 3, 12
HEAD_AXES, PAIR_AXES = ["layer", "head"], ["layer", "head", "other head"]
Select = Callable[..., list[Any]]
"""Runs SQL, given the values of its parameters, on the views ``rows`` and ``analysed``, and returns tuples."""
EXPECTED = "expected a batch with at least one --map, or a --probe of heads such as attention_entropy"


@dataclass(frozen=True, eq=False)
class Means:
    """Means over a sample of pictures, with confidence intervals.

    Args:
        title: what is measured.
        unit: of the values.
        mean, low, high: ``"layer head"`` or ``"layer head other head"``; NaN where no picture has a value. The bounds
            are also NaN where only one picture has a value.
        count: how many pictures have a value, of the same shape.
    """

    title: str
    unit: str
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray


@dataclass(frozen=True)
class Standout:
    """The pictures with the highest and lowest value of a head's measure, the most extreme first, with the value."""

    highest: tuple[tuple[str, float], ...]
    lowest: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class MeanMap:
    """The mean of a map over pictures of one patch grid.

    Args:
        values: ``"row column"``.
        count: how many pictures.
    """

    values: np.ndarray
    count: int


@dataclass(frozen=True, eq=False)
class Atlas:
    """Statistics of a model over the rows of a batch.

    Args:
        model: its name.
        pictures: how many were analysed, or are misclassified, if only these count.
        failed: how many could not be analysed.
        grid: rows and columns of the patch grid of the mean maps, the most frequent one.
        pictures_of_other_grids: how many pictures are in no mean map because they have another grid.
        heads: by column, measures ``"layer head"``.
        pairs: by column, measures ``"layer head other head"``.
        maps: by column, the mean over all pictures.
        classes: by column and class, the mean over the pictures predicted as that class; the most frequent classes.
        standouts: by column of ``heads``, layer and head.
        thumbnails: by path, JPEGs of the pictures in ``standouts``, if the rows have them.
    """

    model: str
    pictures: int
    failed: int
    grid: tuple[int, int]
    pictures_of_other_grids: int
    heads: Mapping[str, Means]
    pairs: Mapping[str, Means]
    maps: Mapping[str, MeanMap]
    classes: Mapping[str, Mapping[str, MeanMap]]
    standouts: Mapping[str, tuple[tuple[Standout, ...], ...]]
    thumbnails: Mapping[str, bytes]


def read_atlas(results: str | os.PathLike[str], memory_bytes: int = MEMORY_BYTES, misclassified: bool = False) -> Atlas:
    """Read an atlas from the folder that a batch wrote.

    Args:
        results: the folder.
        memory_bytes: memory limit of DuckDB, which spills the rest to a temporary folder.
        misclassified: whether only pictures count whose most probable class is not that of their folder.

    Raises:
        ConfigError: DuckDB is not installed, or there are no results.
        DataError: no picture was analysed, none is misclassified, or the batch has neither a map nor a probe of heads.
    """
    results = user_path(results)
    request = read_request(results)
    if request["schema"] != SCHEMA_VERSION:
        raise ConfigError(f"{results}: rows of schema {request['schema']}; this version reads {SCHEMA_VERSION}")
    fields = _fields(results)
    with _database(results, memory_bytes) as select:
        [(pictures, failed)] = select("SELECT count(*) FILTER (error IS NULL), count(error) FROM rows")
        if not pictures:
            raise DataError(f"{results}: none of {failed:,} pictures could be analysed; expected at least one")
        if misclassified:
            [(labelled, wrong)] = select("SELECT count(true_class), count_if(is_misclassified) FROM analysed")
            select("CREATE OR REPLACE VIEW analysed AS SELECT * FROM rows WHERE is_misclassified")
            if not wrong:
                known = f"{labelled:,} of {pictures:,} pictures lie in a folder with the name of a class"
                raise DataError(f"{results}: no picture is misclassified; {known}")
            pictures = wrong
        heads, pairs = (
            {name: _means(select, name, column) for name, column in fields.items() if column.get("axes") == axes}
            for axes in (HEAD_AXES, PAIR_AXES)
        )
        maps = [name for name, column in fields.items() if "method" in column]
        if not (heads or maps):
            raise DataError(f"{results}: nothing in the rows says something about the model; {EXPECTED}")
        [grid] = select("SELECT rows, columns FROM analysed GROUP BY ALL ORDER BY count(*) DESC, rows, columns LIMIT 1")
        [(same_grid,)] = select(f"SELECT count(*) FROM analysed WHERE {_has_grid(grid)}")
        standouts = {name: _standouts(select, name, means.mean.shape) for name, means in heads.items()}
        return Atlas(
            request["model"],
            pictures,
            failed,
            grid,
            pictures - same_grid,
            heads,
            pairs,
            {name: _mean_maps(select, name, grid)[""] for name in maps},
            {name: _mean_maps(select, name, grid, _classes(select, grid)) for name in maps if "predictions" in fields},
            standouts,
            _thumbnails(select, standouts) if THUMBNAIL in fields else {},
        )


@contextmanager
def _database(results: Path, memory_bytes: int) -> Iterator[Select]:
    with optional("an atlas"):
        import duckdb
    # DuckDB must not download extensions: everything needed is in the package.
    settings: dict[str, Any] = {
        "memory_limit": f"{memory_bytes // 2**20}MiB",
        "preserve_insertion_order": False,
        "autoinstall_known_extensions": False,
    }
    with (
        TemporaryDirectory() as folder,
        duckdb.connect(":memory:", config={**settings, "temp_directory": folder}) as connection,
    ):
        files = [str(path) for path in part_paths(results)]
        connection.read_parquet(files, union_by_name=True).create_view("rows")
        connection.execute("CREATE VIEW analysed AS SELECT * FROM rows WHERE error IS NULL")
        try:
            yield lambda query, *values: connection.execute(query, list(values)).fetchall()
        except duckdb.Error as error:
            sentence = str(error).splitlines()[0]
            raise DataError(f"{results}: the table cannot be read ({sentence}); expected what a batch wrote") from None


def _fields(results: Path) -> dict[str, dict[str, Any]]:
    """The metadata of the columns of all part files, by column."""
    pa, parquet = arrow()
    fields: dict[str, dict[str, Any]] = {}
    paths = part_paths(results)
    if not paths:
        raise DataError(f"{results}: no rows in it; expected a batch with at least one picture")
    for path in paths:
        try:
            schema = parquet.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: damaged ({error}); remove it, and run the batch again") from None
        for field in schema:
            metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
            fields[field.name] = {**metadata, "axes": json.loads(metadata["axes"])} if "axes" in metadata else metadata
    return fields


def _means(select: Select, name: str, metadata: Mapping[str, Any]) -> Means:
    from scipy.stats import t as student

    [(shape,)] = select(f"SELECT {_identifier(f'{name}.shape')} FROM analysed LIMIT 1")
    count, mean, deviation = (np.full(int(np.prod(shape)), np.nan) for _ in range(3))
    query = f"SELECT place, count(*), avg(value), stddev_samp(value) FROM {_unnested(name)} GROUP BY place"
    for index, pictures, value_mean, value_deviation in select(query):
        count[index], mean[index] = pictures, value_mean
        deviation[index] = np.nan if value_deviation is None else value_deviation
    count = np.nan_to_num(count)
    half = student.ppf((1 + CONFIDENCE) / 2, np.maximum(count - 1, 1)) * deviation / np.sqrt(np.maximum(count, 1))
    low, high = (_share_bounds if metadata["quantity"] == SHARE else _bounds)(mean, half)
    arrays = [values.reshape(shape) for values in (mean, low, high, count.astype(int))]
    return Means(name, metadata["quantity"], *arrays)


def _bounds(mean: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds by Student's t, clipped at 0, since no measure of a head is negative."""
    return np.maximum(mean - half, 0), mean + half


def _share_bounds(mean: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds by Student's t on the mean's logit, so that they stay within [0, 1].

    The delta method gives the standard error of the logit.
    """
    share, complement = mean, 1 - mean
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        factor = np.exp(np.where(half == 0, 0, half / (share * complement)))
        low, high = share / (share + complement * factor), 1 / (1 + complement / (share * factor))
    # If all pictures have the same share, both bounds are the mean.
    return np.where(half == 0, mean, low), np.where(half == 0, mean, high)


def _standouts(select: Select, name: str, shape: tuple[int, ...]) -> tuple[tuple[Standout, ...], ...]:
    pair = "{'path': path, 'value': value}"
    # Ties are broken by path, so that an atlas is the same each time.
    query = (
        f"SELECT place, arg_max({pair}, {{'v': value, 'p': path}}, {PICTURES_PER_HEAD}), "
        f"arg_min({pair}, {{'v': value, 'p': path}}, {PICTURES_PER_HEAD}) FROM {_unnested(name)} GROUP BY place"
    )
    standouts = {
        index: Standout(*(tuple((each["path"], each["value"]) for each in side) for side in sides))
        for index, *sides in select(query)
    }
    layers, heads = shape
    return tuple(
        tuple(standouts.get(layer * heads + head, Standout((), ())) for head in range(heads)) for layer in range(layers)
    )


def _classes(select: Select, grid: tuple[int, int]) -> list[str]:
    order = f"GROUP BY ALL ORDER BY count(*) DESC, 1 LIMIT {MAX_CLASSES}"
    return [label for (label,) in select(f"SELECT predictions[1].label FROM analysed WHERE {_has_grid(grid)} {order}")]


def _mean_maps(
    select: Select, name: str, grid: tuple[int, int], classes: list[str] | None = None
) -> dict[str, MeanMap]:
    """The mean of a map by class; without classes, the mean over all pictures under an empty name."""
    label = "''" if classes is None else "predictions[1].label"
    condition = f"WHERE {_has_grid(grid)}" + ("" if classes is None else f" AND list_contains(?, {label})")
    query = (
        "SELECT label, place, avg(value), count(*) "
        f"FROM (SELECT {label} AS label, {_unnest(name)} FROM analysed {condition}) GROUP BY ALL"
    )
    rows, columns = grid
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for group, index, mean, count in select(query, *([] if classes is None else [classes])):
        sums.setdefault(group, np.full(rows * columns, np.nan))[index] = mean
        counts[group] = count
    names = [""] if classes is None else classes
    return {group: MeanMap(sums[group].reshape(rows, columns), counts[group]) for group in names}


def _thumbnails(select: Select, standouts: Mapping[str, tuple[tuple[Standout, ...], ...]]) -> dict[str, bytes]:
    heads = [each for layers in standouts.values() for heads in layers for each in heads]
    paths = sorted({path for each in heads for path, _ in each.highest + each.lowest})
    query = f"SELECT path, {THUMBNAIL} FROM analysed WHERE list_contains(?, path) AND {THUMBNAIL} IS NOT NULL"
    return dict(select(query, paths))


def _unnested(name: str) -> str:
    """A subquery with one row for each number of a column that is not NaN: ``path``, ``place`` and ``value``."""
    return f"(SELECT * FROM (SELECT path, {_unnest(name)} FROM analysed) WHERE NOT isnan(value))"


def _unnest(name: str) -> str:
    return f"unnest({_identifier(name)}) AS value, unnest(range(len({_identifier(name)}))) AS place"


def _has_grid(grid: tuple[int, int]) -> str:
    return f"rows = {grid[0]} AND columns = {grid[1]}"


def _identifier(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
