"""The text towers of models, each in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.models.targets import Target
from vitviz.ui.progress_reports import Report, no_report
from vitviz.ui.server.line import Line, Once
from vitviz.weights import Model
from vitviz.weights.formats.names import is_weight_file
from vitviz.weights.isolated_models import IsolatedTower
from vitviz.worker import Worker

# A file of weights in half precision: twice as large in single precision, and once more if it is read whole.
TOWER_COPIES = 3
# The packages of a text tower, once imported.
PACKAGE_BYTES = 256 * 2**20


@dataclass(frozen=True)
class _OpenTower:
    tower: IsolatedTower
    nbytes: int


class TextTowers:
    """The towers used last, each while its model is kept. For one event loop.

    Args:
        worker: starts their processes, each with a limit of memory.
        max_bytes: bound on the sum of these limits.
    """

    def __init__(self, worker: Worker, max_bytes: int) -> None:
        self.worker, self.max_bytes = worker, max_bytes
        # The least recently used first.
        self._open: WeakKeyDictionary[Model, _OpenTower] = WeakKeyDictionary()
        self._opening: Once[_OpenTower] = Once()
        self._opening_line, self._line = Line(), Line(places=2)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def nbytes(self) -> int:
        """The limits of the open towers together."""
        return sum(entry.nbytes for entry in list(self._open.values()))

    async def target(self, model: Model, text: str, report: Report = no_report) -> Target:
        """A text as the target of a map.

        Args:
            model: of the tower.
            text: to be read.
            report: receives how many texts come first.

        Raises:
            CheckpointError, ConfigError, LimitError: the tower cannot be opened, or does not read the text.
        """
        entry = self._open.pop(model, None) or await self._opening.get(model, partial(self._opened, model), report)
        self._open[model] = entry
        self._close_others(model)
        try:
            return await self._line.run(lambda _: entry.tower.target(text), report)
        except (CheckpointError, LimitError):
            # Its process has ended, or takes too long.
            if self._open.get(model) is entry:
                del self._open[model]
            entry.tower.close()
            raise

    async def _opened(self, model: Model, report: Report) -> _OpenTower:
        nbytes = tower_bytes(model)
        if nbytes > self.max_bytes:
            raise LimitError(f"reading texts needs {nbytes:,} bytes of memory; expected at most {self.max_bytes:,}")
        tower = await self._opening_line.run(lambda _: IsolatedTower(self.worker, model, nbytes), report)
        return _OpenTower(tower, nbytes)

    def _close_others(self, model: Model) -> None:
        """Keep within the bound; a tower that reads a text closes after it."""
        for other in list(self._open):
            if other is not model and self.nbytes > self.max_bytes:
                del self._open[other]


def tower_bytes(model: Model) -> int:
    """The limit of a tower's memory: the weights of both towers, in single precision."""
    # A missing folder is reported where the tower is opened.
    if model.origin is None or not model.origin.folder.is_dir():
        return PACKAGE_BYTES
    sizes = [file.stat().st_size for file in model.origin.folder.iterdir() if is_weight_file(file)]
    return TOWER_COPIES * sum(sizes) + PACKAGE_BYTES
