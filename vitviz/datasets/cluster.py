"""A batch on many machines: Ray Data schedules the work, moves the data and retries what failed.

Needs the extra ``ray``. All rows return to the machine that started the run. It alone writes the table, so that
parts are written atomically as in every other run.
"""

from __future__ import annotations

import logging
import os
import pickle
import platform
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitviz.caching import cached_property
from vitviz.datasets.arrow import arrow
from vitviz.datasets.readers import Item, picture_in
from vitviz.datasets.request import BatchRequest
from vitviz.datasets.rows import blank_result, schema
from vitviz.datasets.work import WORKERS, BatchSettings, RowComputer, UnprocessedPictures
from vitviz.errors.arguments import instance, integer
from vitviz.errors.extras import optional
from vitviz.errors.kinds import ConfigError, DataError, VitvizError
from vitviz.images.sources import COLUMN
from vitviz.system.paths import REQUEST_FILE

if TYPE_CHECKING:
    import ray.data

# Pictures that a worker gets at a time: enough that opening and encoding overlap, and few to repeat after a failure.
BLOCK_ROWS = 64
# These turn off Ray's usage statistics, and log lines that would break up the progress bar; errors are raised anyway.
# Ray's default niceness of 15 would starve its workers on a busy machine.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_USAGE_DISABLED": "1",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_worker_niceness": "0",
}
# Of a cluster that is there: Ray would try twenty times, for half a minute each.
ATTEMPTS = {"RAY_gcs_server_port_wait_time_s": "1"}
# The column of pictures on their way through Ray, each a pickled Item.
ITEM = "item"


@dataclass(frozen=True)
class Cluster:
    """Where Ray runs, and with which resources.

    Args:
        address: of a running cluster, as Ray takes it: ``"auto"`` or ``"HOST:PORT"``. Without one, Ray runs on this
            machine for the duration of the batch.
        actors: workers that hold the model; by default as many as the cluster has room for.
        cpus: cores of each worker.
        device: of each worker: ``"cpu"``, or ``"cuda"`` for a GPU to itself.

    Raises:
        ConfigError: a number is not whole, or below 1.
    """

    address: str | None = None
    actors: int | None = None
    cpus: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.actors is not None:
            integer("actors", self.actors, 1)
        integer("cpus", self.cpus, 1)

    @property
    def gpus(self) -> int:
        """GPUs of each worker."""
        return int(self.device.startswith("cuda"))


class RayRows:
    """Rows of pictures, computed by the workers of a cluster.

    Args:
        settings: of the batch.
        columns: of the rows, a ``pyarrow.Schema``.
        cluster: where it runs.

    Raises:
        ConfigError: Ray is not installed.
    """

    wait_seconds = None

    def __init__(self, settings: BatchSettings, columns: Any, cluster: Cluster) -> None:
        self.ray = ray_data()
        self.settings, self.columns, self.cluster = settings, columns, cluster
        self.batch_size = settings.batch_size

    def rows(self, items: UnprocessedPictures) -> Generator[dict[str, Any], None, None]:
        """The row of each picture, once, in order of completion; closing the generator ends the run.

        Raises:
            ConfigError: there is no such cluster, or its machines lack the device, the pictures or the output folder.
            DataError: the cluster failed.
        """
        starts_ray = not self.ray.is_initialized()
        if starts_ray:
            _connect(self.ray, self.cluster)
        try:
            yield from self._rows(items)
        except self.ray.exceptions.RayError as error:
            raise _error_of(error) from None
        finally:
            if starts_ray:
                self.ray.shutdown()

    def _rows(self, items: UnprocessedPictures) -> Generator[dict[str, Any], None, None]:
        actors, rows = _actors(self.ray, self.cluster), min(self.batch_size or BLOCK_ROWS, BLOCK_ROWS)
        items.skipped = len(items.done_keys)
        # A worker reads the source, so that its pictures are never in memory all at once. It mostly waits for files:
        # without a core of its own it does not compete with the others.
        arguments = {"fn_args": (self.ray.put(items), Path.cwd()), "batch_size": 1, "num_cpus": 0}
        pictures = self.ray.data.from_items([0]).map_batches(_read_items, **arguments)
        pictures = pictures.repartition(target_num_rows_per_block=rows)
        results = _map_rows(self.ray, pictures, self.settings, self.columns, self.cluster, actors, rows, _unpickled)
        results.context.enable_progress_bars = False
        for table in results.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from table.to_pylist()


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
    """Compute a request for every picture of a Ray data set: one row a picture, with the columns of ``vitviz batch``.

    Ray Data is lazy: nothing is computed before the rows are consumed, and their order may differ. A picture that
    cannot be opened or analysed has a row with its ``error``.

    Args:
        dataset: with pictures, such as ``ray.data.read_images(folder, include_paths=True)``.
        request: what is computed for every picture.
        column: the column with the pictures: arrays, paths, the bytes of files, or ``bytes`` and ``path``.
        key: the column with the name of each picture, which becomes ``path``.
        cluster: resources of the workers; its address is ignored, since the data set is on a cluster already.
        batch_size, workers: as :func:`vitviz.datasets.run_batch` takes them.

    Returns:
        A data set with the columns of the request, as ``docs/scale.md`` describes them. ``sha256`` is null for
        pictures that are arrays, which have no file.

    Raises:
        ConfigError: Ray is not installed, a number is out of range, or the workers would leave no core for reading and
            writing.
        MethodError, QueryError: the model does not support the request.
    """
    ray = ray_data()
    instance("request", request, BatchRequest, "vitviz.datasets.BatchRequest(…)")
    settings = BatchSettings(request, Path(), batch_size, workers=workers)
    cluster = cluster or Cluster()
    actors = _actors(ray, cluster)
    columns = schema(request, blank_result(request), request.to_json())
    pictures: Any = dataset.select_columns(list(dict.fromkeys((key, column))))
    to_items = partial(_column_items, key=key, column=column)
    return _map_rows(ray, pictures, settings, columns, cluster, actors, BLOCK_ROWS, to_items)


def ray_data() -> Any:
    """The package ``ray`` with ``ray.data``.

    Raises:
        ConfigError: it is not installed.
    """
    with optional("a batch on Ray"):
        import ray
        import ray.data
        import ray.exceptions
    return ray


def _connect(ray: Any, cluster: Cluster) -> None:
    """Join the cluster, or start one on this machine that sends no statistics."""
    is_new = cluster.address is None
    for name, value in (RAY_SETTINGS if is_new else RAY_SETTINGS | ATTEMPTS).items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        ray.init(
            cluster.address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            # Of a cluster that is there, nobody may ask for one.
            include_dashboard=False if is_new else None,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        sentence = str(error).strip().partition("\n")[0]
        raise ConfigError(f"address {cluster.address!r}: no Ray cluster there ({sentence})") from None


def _actors(ray: Any, cluster: Cluster) -> int:
    """How many workers hold the model.

    The tasks that read, divide and write the data need a core: without a spare one they would wait for ever.

    Args:
        ray: the package, connected to a cluster.
        cluster: the requested resources.

    Raises:
        ConfigError: the cluster has no room for one worker, or no spare core beside the requested workers.
    """
    resources = ray.cluster_resources()
    cores, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    room = (cores - 1) // cluster.cpus
    if cluster.actors is not None and cluster.actors <= room:
        return cluster.actors
    room = min(room, gpus) if cluster.gpus else room
    if cluster.actors is not None or room < 1:
        demand = f"{cluster.cpus} cores" + " and a GPU" * cluster.gpus
        found = f"{cores} cores and {gpus} GPUs in the cluster"
        raise ConfigError(f"{found}: expected {demand} for each worker, and 1 for reading and writing")
    return room


def _map_rows(
    ray: Any,
    dataset: Any,
    settings: BatchSettings,
    columns: Any,
    cluster: Cluster,
    actors: int,
    batch_size: int,
    to_items: Callable[[dict[str, Any]], list[Item]],
) -> Any:
    """The rows of a data set of pictures, computed by actors that hold the model."""
    # A reference sends the model once to every machine, not once to every actor.
    return dataset.map_batches(
        _Worker,
        fn_constructor_args=(ray.put(settings), columns, cluster, to_items, Path.cwd()),
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=cluster.cpus,
        num_gpus=cluster.gpus,
    )


class _Worker:
    """An actor that holds the model and turns pictures into rows.

    Args:
        settings_ref: Ray's reference to the :class:`BatchSettings`.
        columns: of the rows.
        cluster: its resources.
        to_items: the pictures in a batch of the data set.
        folder: in which the run was started.
    """

    def __init__(
        self,
        settings_ref: Any,
        columns: Any,
        cluster: Cluster,
        to_items: Callable[[dict[str, Any]], list[Item]],
        folder: Path,
    ) -> None:
        self.settings_ref, self.columns, self.cluster, self.to_items = settings_ref, columns, cluster, to_items
        _enter(folder)

    def __call__(self, batch: dict[str, Any]) -> Any:
        rows = list(self.computer.rows(self.to_items(batch)))
        table = {name: [row.get(name) for row in rows] for name in self.columns.names}
        return arrow()[0].table(table, self.columns)

    # Not in __init__: Ray does not pass on the message of an error that is raised there.
    @cached_property
    def computer(self) -> RowComputer:
        settings: BatchSettings = ray_data().get(self.settings_ref)
        if settings.writers and not (settings.output / REQUEST_FILE).exists():
            problem = f"the worker on {platform.node()} does not see it"
            raise ConfigError(f"{settings.output}: {problem}; expected a folder that all machines have")
        settings.request.model.to(self.cluster.device)
        return RowComputer(settings, min(1.0, self.cluster.cpus / (os.cpu_count() or 1)))


def _enter(folder: Path) -> None:
    """Work in the folder of the run, from which relative paths count, on machines that have it."""
    with suppress(OSError):
        os.chdir(folder)


def _read_items(batch: dict[str, Any], items_ref: Any, folder: Path) -> Iterator[Any]:
    """The pictures that have no row, read on a worker; one empty table first, since there may be none."""
    _enter(folder)
    pa = arrow()[0]
    columns = pa.schema([(ITEM, pa.large_binary())])
    yield pa.table({ITEM: []}, columns)
    for item in ray_data().get(items_ref):
        yield pa.table({ITEM: [pickle.dumps(item)]}, columns)


def _unpickled(batch: dict[str, Any]) -> list[Item]:
    return [pickle.loads(content) for content in batch[ITEM]]


def _column_items(batch: dict[str, Any], key: str, column: str) -> list[Item]:
    return [
        Item(str(name), picture_in(cell, str(name), Path()))
        for name, cell in zip(batch[key], batch[column], strict=True)
    ]


def _error_of(error: BaseException) -> VitvizError:
    """The error that a worker raised, or else an error of the cluster."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, VitvizError):
            # Ray raises a subclass of both VitvizError and RayError: find the original class.
            kind = next(each for each in type(cause).__mro__ if each.__module__ == VitvizError.__module__)
            return kind(str(getattr(cause, "cause", cause)))
        error, cause = cause, getattr(cause, "cause", None) or cause.__cause__
    sentence = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
    return DataError(f"ray: the cluster gave up ({sentence}); the rows written so far are valid, run it again")
