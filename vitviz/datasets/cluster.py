"""The same work on many machines, by Ray Data: what is scheduled, sent and tried again is its business.

Needs the extra ``vitviz[ray]``. The rows come back to the machine that asked, which alone writes the table: parts are
whole or absent there as in every other run.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitviz.datasets.arrow import arrow
from vitviz.datasets.folder import RUN
from vitviz.datasets.hub import PREFIX
from vitviz.datasets.output import key_digest
from vitviz.datasets.readers import Item, Items
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import rehearsed, schema
from vitviz.datasets.work import WORKERS, Pending, RowMaker, Work
from vitviz.errors.arguments import instance, integer
from vitviz.errors.extras import extra
from vitviz.errors.kinds import ConfigError, DataError, VitvizError
from vitviz.errors.messages import choices
from vitviz.images.sources import COLUMN

if TYPE_CHECKING:
    import ray.data

# Pictures that a worker gets at a time: enough that opening and encoding overlap, and little to do again.
MOST_IN_BLOCK, STREAM_BLOCK = 256, 64
BLOCKS_PER_ACTOR = 4
# No statistics for Ray's makers, and no lines between those of the progress: what goes wrong is raised as an error. By
# itself, Ray lets everything else go before its workers (a niceness of 15): on a busy machine they hardly ever run.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_USAGE_DISABLED": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_worker_niceness": "0",
}
KEY, FILE, CONTENT, KEPT = "key", "file", "content", "kept"


@dataclass(frozen=True)
class Cluster:
    """Where Ray runs, and with what.

    Args:
        address: of a cluster that is there, as Ray takes it: ``"auto"`` or ``"HOST:PORT"``. Without one, Ray starts on
            this machine for as long as the run takes.
        actors: workers that hold the model; as many as the cluster has room for where it is not given.
        cpus: cores of each, on which it computes.
        device: on which each computes: ``"cpu"``, or ``"cuda"`` for a graphics card of its own.

    Raises:
        ConfigError: a number is not whole, or below 1, or the device is one certain card.
    """

    address: str | None = None
    actors: int | None = None
    cpus: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.actors is not None:
            integer("actors", self.actors, 1)
        integer("cpus", self.cpus, 1)
        if ":" in self.device:
            raise ConfigError(f"device {self.device!r}: Ray gives every worker a card of its own; expected 'cuda'")

    @property
    def cards(self) -> int:
        """Graphics cards of each worker."""
        return int(self.device == "cuda")


class RayRows:
    """Rows of pictures, made by the workers of a cluster.

    Args:
        work: what is done.
        columns: of the rows, an ``pyarrow.Schema``.
        cluster: where.

    Raises:
        ConfigError: Ray is not installed.
    """

    waited = None

    def __init__(self, work: Work, columns: Any, cluster: Cluster) -> None:
        self.ray = ray_data()
        # Workers run in folders of their own.
        self.work, self.columns, self.cluster = replace(work, output=work.output.absolute()), columns, cluster
        self.batch_size = work.batch_size

    def rows(self, items: Pending) -> Generator[dict[str, Any], None, None]:
        """The row of each picture, once, in the order in which they are done; closing it ends the run.

        Raises:
            ConfigError: there is no such cluster, or its machines lack the device, the pictures or the output folder.
            DataError: the cluster gave up.
        """
        here = not self.ray.is_initialized()
        if here:
            _connect(self.ray, self.cluster)
        try:
            yield from self._rows(items)
        except self.ray.exceptions.RayError as error:
            raise _reason(error) from None
        finally:
            if here:
                self.ray.shutdown()

    def _rows(self, items: Pending) -> Generator[dict[str, Any], None, None]:
        actors = _actors(self.ray, self.cluster)
        sent, block, witness, count = self._send(items, actors)
        columns = self.columns.append(arrow()[0].field(KEPT, arrow()[0].int64()))
        made = _mapped(self.ray, sent, self.work, columns, self.cluster, actors, block, witness=witness)
        made.context.enable_progress_bars = False
        seen = set[bytes]()
        for table in made.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in table.to_pylist():
                kept = row.pop(KEPT)
                if kept:
                    items.kept += kept
                    continue
                key = key_digest(row["path"])
                if key in seen:
                    raise DataError(f"ray: {row['path']} came twice; what was written is whole, run it again")
                seen.add(key)
                yield row
        if count is not None and len(seen) != count:
            raise DataError(f"ray: {len(seen):,} of {count:,} pictures came back; run it again for the others")

    def _send(self, items: Pending, actors: int) -> tuple[Any, int, Path | None, int | None]:
        """The pictures as a data set, how many a worker gets at a time, a file of them that is here, and their number.

        A source that streams is read by a worker, so that what it holds is never in memory all at once.
        """
        data, streamed = self.ray.data, items.items
        if isinstance(streamed, Items) and streamed.reader.streams:
            reading = {"source": _absolute(streamed.source), "column": streamed.column}
            known = self.ray.put(items.there)
            # It waits for files most of the time; that it takes no core also keeps it apart from the workers.
            read = data.from_items([reading]).map_batches(_read, fn_args=(known,), batch_size=1, num_cpus=0)
            return read, STREAM_BLOCK, None, None
        waiting = list(items)
        least = min(self.batch_size or MOST_IN_BLOCK, MOST_IN_BLOCK)
        size = min(max(least, len(waiting) // (actors * BLOCKS_PER_ACTOR)), MOST_IN_BLOCK)
        tables = [_table(waiting[start : start + size]) for start in range(0, len(waiting), size)]
        there = (item.source for item in waiting if isinstance(item.source, Path) and item.source.exists())
        witness = next(there, None)
        return data.from_arrow(tables or [_table([])]), size, witness and witness.absolute(), len(waiting)


def analyze_dataset(
    dataset: ray.data.Dataset,
    request: BatchRequest,
    *,
    column: str = COLUMN,
    key: str = "path",
    cluster: Cluster | None = None,
    batch_size: int | None = None,
    workers: int = WORKERS,
) -> ray.data.Dataset:
    """Answer a request for every picture of a Ray data set: one row a picture, with the columns of ``vitviz batch``.

    As everything in Ray Data, nothing is computed before the rows are asked for, and their order may be another one.
    A picture that cannot be opened or analysed is a row with its ``error``.

    Args:
        dataset: with pictures, such as ``ray.data.read_images(folder, include_paths=True)``.
        request: what is asked about every picture.
        column: that holds the pictures: arrays, paths, the bytes of files, or ``bytes`` and ``path``.
        key: column with the name of each picture, which becomes ``path``.
        cluster: what each worker takes; its address is not looked at, since the data set is on a cluster already.
        batch_size, workers: as :func:`vitviz.datasets.run_batch` takes them.

    Returns:
        A data set with the columns of the request, as ``docs/scale.md`` describes them. ``sha256`` is null where the
        pictures are arrays: nothing is known of their files.

    Raises:
        ConfigError: Ray is not installed, the data set has no such column, a number is out of range, or the workers
            would leave no core to read and write on.
        MethodError, QueryError: the model cannot serve the request.
    """
    ray = ray_data()
    instance("request", request, BatchRequest, "vitviz.datasets.BatchRequest(…)")
    there = dataset.columns() or []
    for name, argument in ((column, "column"), (key, "key")):
        if name not in there:
            raise ConfigError(f"{argument} = {name!r}: the data set has no such column; expected {choices(there)}")
    work = Work(request, Path(), batch_size, workers=workers)
    cluster = cluster or Cluster()
    # The data set's own tasks read and write on a core, for which they would wait for ever.
    actors = _actors(ray, cluster, spare=1)
    columns = schema(request, rehearsed(request), request.to_json())
    pictures: Any = dataset.select_columns(list(dict.fromkeys((key, column))))
    return _mapped(ray, pictures, work, columns, cluster, actors, STREAM_BLOCK, (key, column))


def ray_data() -> Any:
    """Ray with its part for data.

    Raises:
        ConfigError: it is not installed.
    """
    with extra("ray", "a batch on Ray"):
        import ray
        import ray.data
        import ray.exceptions
    return ray


def _connect(ray: Any, cluster: Cluster) -> None:
    """Join the cluster, or start one on this machine that sends nothing to anybody."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if cluster.address is None:
        options["include_dashboard"] = False
    try:
        ray.init(cluster.address or "local", **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        sentence = str(error).strip().partition("\n")[0]
        raise ConfigError(f"address {cluster.address!r}: no Ray cluster there ({sentence})") from None


def _actors(ray: Any, cluster: Cluster, spare: int = 0) -> int:
    """How many workers hold the model.

    Args:
        ray, cluster: what there is, and what was asked for.
        spare: cores that other tasks of the same work need.

    Raises:
        ConfigError: the cluster has no room for one, or none for other tasks beside those that were asked for.
    """
    there = ray.cluster_resources()
    cores = int(there.get("CPU", 0))
    if cluster.actors is not None:
        taken = cluster.actors * cluster.cpus
        if spare and taken + spare > cores:
            raise ConfigError(
                f"actors = {cluster.actors}: of {cores} cores in the cluster they take {taken}, and reading and "
                f"writing need {spare}; expected fewer actors, or a cluster of {taken + spare} cores"
            )
        return cluster.actors
    room = (cores - spare) // cluster.cpus
    if cluster.cards:
        room = min(room, int(there.get("GPU", 0)) // cluster.cards)
    if room < 1:
        found = f"{there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} graphics cards in the cluster"
        needed = f"{cluster.cpus + spare} cores" + f" and {cluster.cards} card" * bool(cluster.cards)
        raise ConfigError(f"{found}: expected {needed} for each worker, or actors= where more machines will come")
    return room


def _mapped(
    ray: Any,
    dataset: Any,
    work: Work,
    columns: Any,
    cluster: Cluster,
    actors: int,
    batch_size: int,
    names: tuple[str, ...] = (KEY, FILE, CONTENT),
    witness: Path | None = None,
) -> Any:
    """The rows of a data set of pictures, by actors that hold the model."""
    # The model travels once, to every machine, and not with every actor.
    sent = ray.put(work)
    return dataset.map_batches(
        _Worker,
        fn_constructor_args=(sent, columns, cluster, names, witness),
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=cluster.cpus,
        num_gpus=cluster.cards,
    )


class _Worker:
    """An actor that holds the model: pictures in, rows out.

    Args:
        sent: the work, as a reference.
        columns: of the rows, and where it is counted :data:`KEPT`.
        cluster: what it may take.
        names: columns of the pictures: that of the key, and those in one of which a picture is.
        witness: a file that every machine has to see.
    """

    def __init__(
        self, sent: Any, columns: Any, cluster: Cluster, names: tuple[str, ...], witness: Path | None = None
    ) -> None:
        self.sent, self.columns, self.cluster, self.names, self.witness = sent, columns, cluster, names, witness

    def __call__(self, batch: dict[str, Any]) -> Any:
        pa, _ = arrow()
        kept = sum(int(each) for each in batch.get(KEPT, ()))
        cells = zip(*(batch[name] for name in self.names), strict=True)
        items = [Item(str(key), _source(pictures)) for key, *pictures in cells if key is not None]
        rows = list(self.maker.rows(items))
        table = {name: [row.get(name) for row in rows] for name in self.columns.names}
        if kept:
            table = {name: [*values, kept if name == KEPT else None] for name, values in table.items()}
            table["path"][-1] = ""
        return pa.table(table, self.columns)

    # Not in __init__: what goes wrong there reaches nobody as a sentence.
    @cached_property
    def maker(self) -> RowMaker:
        work: Work = ray_data().get(self.sent)
        needed = [work.output / RUN] * bool(work.writers) + [self.witness] * (self.witness is not None)
        for path in needed:
            if path is not None and not path.exists():
                where = f"the worker on {platform.node()} does not see it"
                raise ConfigError(f"{path}: {where}; expected folders that all machines have at the same path")
        work.request.model.to(self.cluster.device)
        return RowMaker(work, min(1.0, self.cluster.cpus / (os.cpu_count() or 1)))


def _source(cells: list[Any]) -> Any:
    """The picture in one of some cells: a path, the content of a file, or values; nothing, where all are empty."""
    for cell in cells:
        # As the package datasets keeps an image that it has not decoded.
        found = (cell.get("bytes") or cell.get("path")) if isinstance(cell, Mapping) else cell
        if isinstance(found, str):
            return Path(found)
        # A column without one value arrives as NaN.
        if isinstance(found, bytes | np.ndarray):
            return found
    return b""


def _table(items: list[Item], kept: int = 0) -> Any:
    """Pictures as Ray carries them, with how many more have a row."""
    pa, _ = arrow()
    rows: list[dict[str, Any]] = [
        {KEY: each.key, FILE: str(each.source.absolute()), CONTENT: None, KEPT: 0}
        if isinstance(each.source, Path)
        else {KEY: each.key, FILE: None, CONTENT: each.source, KEPT: 0}
        for each in items
    ]
    if kept:
        rows.append({KEY: None, FILE: None, CONTENT: None, KEPT: kept})
    fields = [(KEY, pa.string()), (FILE, pa.string()), (CONTENT, pa.large_binary()), (KEPT, pa.int64())]
    return pa.Table.from_pylist(rows, pa.schema(fields))


def _read(batch: dict[str, Any], known: Any) -> Iterator[Any]:
    """The pictures of a source that streams, on a worker."""
    yield from _blocks(Items(str(batch["source"][0]), str(batch["column"][0])), set(ray_data().get(known)))


def _blocks(items: Items, there: set[bytes]) -> Iterator[Any]:
    """What is missing, some at a time, and how many are not."""
    pending = Pending(items, there)
    missing = iter(pending)
    while block := list(islice(missing, STREAM_BLOCK)):
        yield _table(block)
    yield _table([], pending.kept)


def _absolute(source: str) -> str:
    """Of a source, as a worker finds it that runs in another folder."""
    name, sign, split = source.removeprefix(PREFIX).rpartition(":")
    if source.startswith(PREFIX):
        folder = name if sign else split
        rest = f":{split}" if sign else ""
        return f"{PREFIX}{Path(folder).absolute()}{rest}" if Path(folder).exists() else source
    return str(Path(source).absolute())


def _reason(error: BaseException) -> VitvizError:
    """What a worker said, or else that the cluster gave up."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, VitvizError):
            # Ray makes a class of its own of it, which is a VitvizError and a RayError.
            kind = next(each for each in type(cause).__mro__ if each.__module__ == VitvizError.__module__)
            return kind(str(getattr(cause, "cause", cause)))
        error, cause = cause, getattr(cause, "cause", None) or cause.__cause__
    sentence = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    return DataError(f"ray: the cluster gave up ({sentence}); what was written is whole, run it again")
