"""What the results of a batch say about the model: its heads, where its attention lies, and which pictures stand out.

DuckDB reads the table: its sums and rankings go through it once, in the memory that they are given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from vitviz.datasets.arrow import arrow
from vitviz.datasets.folder import PARTS
from vitviz.datasets.output import request_of
from vitviz.datasets.request import SCHEMA_VERSION
from vitviz.datasets.rows import THUMBNAIL
from vitviz.errors.extras import extra
from vitviz.errors.kinds import ConfigError, DataError

CONFIDENCE = 0.95
# The unit of measures that lie in [0, 1].
SHARE = "share"
MEMORY_BYTES = 512 * 2**20
# Of a head and measure; and of the classes whose mean maps are shown, those predicted most often.
PICTURES_PER_HEAD, MOST_CLASSES = 3, 12
OF_HEADS, OF_PAIRS = ["layer", "head"], ["layer", "head", "other head"]
NEEDED = "expected a batch with at least one --map, or a --probe of heads such as attention_entropy"


@dataclass(frozen=True, eq=False)
class Means:
    """Means over pictures with their confidence intervals, of which the pictures are the sample.

    Args:
        title: what is measured.
        unit: of the values.
        mean, low, high: ``"layer head"`` or ``"layer head other head"``; NaN where no picture has a value, and bounds
            NaN where only one has.
        count: pictures with a value, of the same shape.
    """

    title: str
    unit: str
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray


@dataclass(frozen=True)
class Standout:
    """The pictures in which a measure of a head is highest and lowest, the most extreme first, with its value."""

    highest: tuple[tuple[str, float], ...]
    lowest: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class MeanMap:
    """The mean of a map over pictures of one patch grid.

    Args:
        values: ``"row column"``.
        count: pictures.
    """

    values: np.ndarray
    count: int


@dataclass(frozen=True, eq=False)
class Atlas:
    """What the rows of a batch say about a model.

    Args:
        model: its name.
        pictures: that were analysed.
        failed: that could not be.
        grid: rows and columns of the patch grid of the mean maps, the most frequent one.
        left_out: pictures of other grids, which are in no mean map.
        heads: by column, measures ``"layer head"``.
        pairs: by column, measures ``"layer head other head"``.
        maps: by column, the mean over all pictures.
        classes: by column and class, the mean over the pictures that are taken for it; the most frequent classes.
        standouts: by column of ``heads``, layer and head.
        thumbnails: JPEGs of pictures in ``standouts``, where the rows have them.
    """

    model: str
    pictures: int
    failed: int
    grid: tuple[int, int]
    left_out: int
    heads: Mapping[str, Means]
    pairs: Mapping[str, Means]
    maps: Mapping[str, MeanMap]
    classes: Mapping[str, Mapping[str, MeanMap]]
    standouts: Mapping[str, tuple[tuple[Standout, ...], ...]]
    thumbnails: Mapping[str, bytes]


def read_atlas(results: Path, memory_bytes: int = MEMORY_BYTES) -> Atlas:
    """Read an atlas from the folder that a batch wrote.

    Args:
        results: the folder.
        memory_bytes: that DuckDB may use; what does not fit goes to a temporary folder.

    Raises:
        ConfigError: DuckDB is not installed, or there are no results.
        DataError: no picture was analysed, or nothing was asked that says something about the model.
    """
    request = request_of(results)
    if request["schema"] != SCHEMA_VERSION:
        raise ConfigError(f"{results}: rows of schema {request['schema']}; this version reads {SCHEMA_VERSION}")
    fields = _fields(results)
    with _database(results, memory_bytes) as table:
        pictures, failed = table.one("SELECT count(*) FILTER (error IS NULL), count(error) FROM rows")
        if not pictures:
            raise DataError(f"{results}: none of {failed:,} pictures could be analysed; expected at least one")
        heads = {name: _means(table, name, about) for name, about in fields.items() if about.get("axes") == OF_HEADS}
        pairs = {name: _means(table, name, about) for name, about in fields.items() if about.get("axes") == OF_PAIRS}
        maps = [name for name, about in fields.items() if "method" in about]
        if not (heads or maps):
            raise DataError(f"{results}: nothing in the rows says something about the model; {NEEDED}")
        grid = table.one(
            "SELECT rows, columns FROM analysed GROUP BY ALL ORDER BY count(*) DESC, rows, columns LIMIT 1"
        )
        (of_grid,) = table.one(f"SELECT count(*) FROM analysed WHERE {_of(grid)}")
        standouts = {name: _standouts(table, name, means.mean.shape) for name, means in heads.items()}
        return Atlas(
            request["model"],
            pictures,
            failed,
            grid,
            pictures - of_grid,
            heads,
            pairs,
            {name: _mean_maps(table, name, grid)[""] for name in maps},
            {name: _mean_maps(table, name, grid, _classes(table, grid)) for name in maps if "predictions" in fields},
            standouts,
            _thumbnails(table, standouts) if THUMBNAIL in fields else {},
        )


class _Table:
    """A connection to DuckDB with the views ``rows`` and ``analysed``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._connection.execute(query, list(values)).fetchall()
        return found

    def one(self, query: str) -> Any:
        return self.all(query)[0]


@contextmanager
def _database(results: Path, memory_bytes: int) -> Iterator[_Table]:
    with extra("atlas", "an atlas"):
        import duckdb
    with TemporaryDirectory() as folder, duckdb.connect(":memory:") as connection:
        connection.execute(f"SET memory_limit = '{memory_bytes // 2**20}MiB'")
        connection.execute("SET temp_directory = " + _text(folder))
        connection.execute("SET preserve_insertion_order = false")
        # Not to be looked up anywhere else: everything needed is in the package.
        connection.execute("SET autoinstall_known_extensions = false")
        files = _text(str(results / PARTS / "part-*.parquet"))
        connection.execute(f"CREATE VIEW rows AS SELECT * FROM read_parquet({files}, union_by_name = true)")
        connection.execute("CREATE VIEW analysed AS SELECT * FROM rows WHERE error IS NULL")
        try:
            yield _Table(connection)
        except duckdb.Error as error:
            sentence = str(error).splitlines()[0]
            raise DataError(f"{results}: the table cannot be read ({sentence}); expected what a batch wrote") from None


def _fields(results: Path) -> dict[str, dict[str, Any]]:
    """What the columns of all parts say of themselves."""
    pa, parquet = arrow()
    fields: dict[str, dict[str, Any]] = {}
    parts = sorted((results / PARTS).glob("part-*.parquet"))
    if not parts:
        raise DataError(f"{results}: no rows in it; expected a batch with at least one picture")
    for part in parts:
        try:
            schema = parquet.read_schema(part)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{part}: damaged ({error}); remove it, and run the batch again") from None
        for field in schema:
            about = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
            fields[field.name] = {**about, "axes": json.loads(about["axes"])} if "axes" in about else about
    return fields


def _means(table: _Table, name: str, about: Mapping[str, Any]) -> Means:
    from scipy.stats import t as student

    shape = table.one(f"SELECT {_name(f'{name}.shape')} FROM analysed LIMIT 1")[0]
    count, mean, deviation = (np.full(int(np.prod(shape)), np.nan) for _ in range(3))
    query = f"SELECT place, count(*), avg(value), stddev_samp(value) FROM {_unnested(name)} GROUP BY place"
    for place, number, average, spread in table.all(query):
        count[place], mean[place] = number, average
        deviation[place] = np.nan if spread is None else spread
    count = np.nan_to_num(count)
    half = student.ppf((1 + CONFIDENCE) / 2, np.maximum(count - 1, 1)) * deviation / np.sqrt(np.maximum(count, 1))
    low, high = (_share_bounds if about["quantity"] == SHARE else _bounds)(mean, half)
    parts = [values.reshape(shape) for values in (mean, low, high, count.astype(int))]
    return Means(name, about["quantity"], *parts)


def _bounds(mean: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of Student's t; no measure of a head is below 0, so that what lies there holds no mean."""
    return np.maximum(mean - half, 0), mean + half


def _share_bounds(mean: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Those of the mean's logit, whose standard error is the mean's by the delta method: they stay within [0, 1]."""
    odds, rest = mean, 1 - mean
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        times = np.exp(np.where(half == 0, 0, half / (odds * rest)))
        low, high = odds / (odds + rest * times), 1 / (1 + rest / (odds * times))
    # Where all pictures have the same share, there is nothing between the bounds.
    return np.where(half == 0, mean, low), np.where(half == 0, mean, high)


def _standouts(table: _Table, name: str, shape: tuple[int, ...]) -> tuple[tuple[Standout, ...], ...]:
    pair = "{'path': path, 'value': value}"
    # Of equal values the first names, so that an atlas is the same each time.
    query = (
        f"SELECT place, arg_max({pair}, {{'v': value, 'p': path}}, {PICTURES_PER_HEAD}), "
        f"arg_min({pair}, {{'v': value, 'p': path}}, {PICTURES_PER_HEAD}) FROM {_unnested(name)} GROUP BY place"
    )
    found = {
        place: Standout(*(tuple((each["path"], each["value"]) for each in side) for side in sides))
        for place, *sides in table.all(query)
    }
    layers, heads = shape
    return tuple(
        tuple(found.get(layer * heads + head, Standout((), ())) for head in range(heads)) for layer in range(layers)
    )


def _classes(table: _Table, grid: tuple[int, int]) -> list[str]:
    query = (
        f"SELECT predictions[1].label FROM analysed WHERE {_of(grid)} GROUP BY ALL "
        f"ORDER BY count(*) DESC, 1 LIMIT {MOST_CLASSES}"
    )
    return [label for (label,) in table.all(query)]


def _mean_maps(table: _Table, name: str, grid: tuple[int, int], classes: list[str] | None = None) -> dict[str, MeanMap]:
    """The mean of a map by class, or of all pictures under an empty name."""
    label = "''" if classes is None else "predictions[1].label"
    chosen = f"WHERE {_of(grid)}" + ("" if classes is None else f" AND list_contains(?, {label})")
    query = (
        "SELECT label, place, avg(value), count(*) "
        f"FROM (SELECT {label} AS label, {_places(name)} FROM analysed {chosen}) GROUP BY ALL"
    )
    rows, columns = grid
    sums: dict[str, np.ndarray] = {}
    counts: dict[str, int] = {}
    for each, place, mean, count in table.all(query, *([] if classes is None else [classes])):
        sums.setdefault(each, np.full(rows * columns, np.nan))[place] = mean
        counts[each] = count
    names = [""] if classes is None else classes
    return {each: MeanMap(sums[each].reshape(rows, columns), counts[each]) for each in names}


def _thumbnails(table: _Table, standouts: Mapping[str, tuple[tuple[Standout, ...], ...]]) -> dict[str, bytes]:
    sides = [
        side
        for layers in standouts.values()
        for heads in layers
        for each in heads
        for side in (each.highest, each.lowest)
    ]
    paths = sorted({path for side in sides for path, _ in side})
    query = f"SELECT path, {THUMBNAIL} FROM analysed WHERE list_contains(?, path) AND {THUMBNAIL} IS NOT NULL"
    return dict(table.all(query, paths))


def _unnested(name: str) -> str:
    """A column's numbers one by one: ``path``, ``place`` and ``value``, without those that are NaN."""
    return f"(SELECT * FROM (SELECT path, {_places(name)} FROM analysed) WHERE NOT isnan(value))"


def _places(name: str) -> str:
    return f"unnest({_name(name)}) AS value, unnest(range(len({_name(name)}))) AS place"


def _of(grid: tuple[int, int]) -> str:
    return f"rows = {grid[0]} AND columns = {grid[1]}"


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
