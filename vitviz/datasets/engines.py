"""Where a batch runs: one record and one function for each engine."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from vitviz.datasets.cluster import Cluster, RayRows
from vitviz.datasets.work import BatchSettings, RowComputer, UnprocessedPictures
from vitviz.errors.kinds import ConfigError


class RowSource(Protocol):
    """Computes the rows of pictures, in any order.

    Attributes:
        batch_size: most pictures that are encoded together; None if every worker chooses its own.
        wait_seconds: seconds for which the model waited for pictures; None if that is not known.
    """

    @property
    def batch_size(self) -> int | None: ...
    @property
    def wait_seconds(self) -> float | None: ...
    def rows(self, items: UnprocessedPictures) -> Generator[dict[str, Any], None, None]:
        """The row of each picture, once; closing the generator ends the run."""


@dataclass(frozen=True)
class Engine:
    """A way to run a batch.

    Args:
        name: in the command and in Python.
        title: what it is, for a message.
        open: makes a source of rows for the settings of a batch, the schema of the rows and a cluster.
    """

    name: str
    title: str
    open: Callable[[BatchSettings, Any, Cluster], RowSource]


def _local(settings: BatchSettings, columns: Any, cluster: Cluster) -> RowSource:
    if cluster != Cluster():
        raise ConfigError(f"{cluster}: the engine 'local' has no cluster; expected engine 'ray'")
    return RowComputer(settings)


LOCAL = Engine("local", "in this process", _local)
RAY = Engine("ray", "Ray Data, on this machine or on a cluster", RayRows)
ENGINES: dict[str, Engine] = {engine.name: engine for engine in (LOCAL, RAY)}
