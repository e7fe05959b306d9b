"""The text towers of models, each in a process of its own."""

from __future__ import annotations

from functools import partial
from weakref import ref

from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.models.targets import Target
from vitviz.ui.holdings import Holdings
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


class TextTowers:
    """The towers used last, each while its model is kept. For one event loop.

    Args:
        worker: starts their processes, each with a limit of memory.
        max_bytes: bound on the sum of these limits.

    Attributes:
        open: towers by weak references to their models, with the limits of their memory. One that leaves closes once it
            has read its text.
    """

    def __init__(self, worker: Worker, max_bytes: int) -> None:
        self.worker, self.open = worker, Holdings[IsolatedTower](max_bytes, lambda _: 0)
        self._opening: Once[IsolatedTower] = Once()
        self._opening_line, self._line = Line(), Line(places=2)

    async def target(self, model: Model, text: str, report: Report = no_report) -> Target:
        """A text as the target of a map.

        Args:
            model: of the tower.
            text: to be read.
            report: receives how many texts come first.

        Raises:
            CheckpointError, ConfigError, LimitError: the tower cannot be opened, or does not read the text.
        """
        if model.tower is not None:
            return await self._line.run(lambda _: model.text(text), report)
        tower = self.open.get(ref(model)) or await self._opening.get(model, partial(self._opened, model), report)
        try:
            return await self._line.run(lambda _: tower.target(text), report)
        except (CheckpointError, LimitError):
            # Its process has ended, or takes too long.
            if self.open.get(ref(model)) is tower:
                self.open.drop(ref(model))
            tower.close()
            raise

    async def _opened(self, model: Model, report: Report) -> IsolatedTower:
        nbytes = tower_bytes(model)
        if nbytes > self.open.limit:
            raise LimitError(f"reading texts needs {nbytes:,} bytes of memory; expected at most {self.open.limit:,}")
        tower = await self._opening_line.run(lambda _: IsolatedTower(self.worker, model, nbytes), report)
        self.open.put(ref(model), tower)
        self.open.grow(ref(model), nbytes)
        return tower


def tower_bytes(model: Model) -> int:
    """The limit of a tower's memory: the weights of both towers, in single precision."""
    # A missing folder is reported where the tower is opened.
    if model.origin is None or not model.origin.folder.is_dir():
        return PACKAGE_BYTES
    sizes = [file.stat().st_size for file in model.origin.folder.iterdir() if is_weight_file(file)]
    return TOWER_COPIES * sum(sizes) + PACKAGE_BYTES
