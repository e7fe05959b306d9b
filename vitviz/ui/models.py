"""The models of the menu, and visitors' own checkpoints."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.errors.messages import listing
from vitviz.images.preprocessing import Fit
from vitviz.models.targets import Target
from vitviz.ui.holdings import Holdings
from vitviz.ui.pictures import Upload
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import BUNDLED, ZOO, Model, NamedModel, find_snapshots, load
from vitviz.weights.formats.names import is_weight_file
from vitviz.weights.hub import is_cached
from vitviz.weights.isolated_models import open_checkpoint, open_published
from vitviz.weights.model import Origin as FileOrigin
from vitviz.weights.text_tower import reads_text
from vitviz.worker import Worker, shared_worker


class ModelChoice(NamedTuple):
    """A visitor's choice of a model.

    Args:
        source: a name, ``hf:OWNER/NAME``, or empty for uploaded files.
        files: paths of the uploaded files.
        overrides: settings that the files leave open.
        step: of a snapshot; None for the last one, and for a model without snapshots.
        name: of the files or on the hub, as the visitor knows it.
    """

    source: str
    files: tuple[str, ...] = ()
    overrides: tuple[tuple[str, Any], ...] = ()
    step: int | None = None
    name: str = ""

    @property
    def is_loose(self) -> bool:
        """Whether its files were chosen one by one: together, they are what a folder with them alone is."""
        return len(self.files) > 1 and is_weight_file(self.name)

    @property
    def name_and_settings(self) -> str:
        """Its name and its settings, but for names of classes: for a link, which has no files."""
        settings = ", ".join(f"{name}={value}" for name, value in self.overrides if name != "labels")
        return f"{self.name} with {settings}" if settings else self.name

    @property
    def run(self) -> ModelChoice:
        """The choice without a step, which all snapshots share."""
        return self._replace(step=None)


MAX_OWN = 1000
# Kept of each analysis: a map is a number per token, a likeness target the features of one token.
MAX_MAPS, MAX_LIKENESSES = 16, 8
# Files beside weights: configurations and tokenizers.
SIDECAR_SUFFIXES = (".json", ".txt", ".model")
OWN_EXPIRED = "This checkpoint is no longer kept on this server: open it again under Model."
# The name of a series of snapshots without one.
SERIES = "snapshots"


def open_choice(
    choice: ModelChoice,
    origin: FileOrigin | None = None,
    worker: Worker | None = None,
    max_bytes: int = 3 * 2**30,
) -> Model:
    """Open a visitor's choice in a worker process.

    Args:
        choice: of the visitor.
        origin: the files of a published checkpoint, as :func:`vitviz.weights.fetch` returns them.
        worker: opens it; the worker of this process by default.
        max_bytes: the largest weights.

    Raises:
        CheckpointError, LimitError: it cannot be opened.
    """
    overrides, worker = dict(choice.overrides), worker or shared_worker()
    if not choice.files:
        # The name is not on the hub: a bundled model, or unknown.
        if origin is None:
            return load(choice.source, engine="own", **overrides)
        return open_published(worker, choice.source, origin, max_bytes, **overrides)
    missing = [Path(file).name for file in choice.files if not Path(file).is_file()]
    if missing:
        raise CheckpointError(f"{', '.join(missing)}: no longer kept on this server; upload it again")
    name = max((Path(file) for file in choice.files), key=lambda path: path.stat().st_size).stem
    if len(choice.files) == 1:
        return open_checkpoint(worker, Path(choice.files[0]), max_bytes, name, **overrides)
    # Each upload has a folder of its own, but the files of a checkpoint belong beside each other.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitviz-", ignore_cleanup_errors=True)))
        try:
            counts = Counter(Path(file).name for file in choice.files)
            repeated = [file for file, count in counts.items() if count > 1]
            if repeated:
                raise CheckpointError(f"{name}: {listing(repeated)} more than once; expected every file once")
            for file in choice.files:
                _link(file, folder / Path(file).name)
            series = find_snapshots(folder)
            model = open_checkpoint(worker, folder, max_bytes, name if series is None else SERIES, **overrides)
            if series is not None:
                model = replace(model, snapshots=series, step=series.steps[-1])
        except (CheckpointError, LimitError) as error:
            # The message shall name the upload, not the temporary folder.
            error.args = (str(error).replace(folder.name, name),)
            raise error from None
        except OSError as error:
            raise CheckpointError(f"{name}: cannot be opened ({error.strerror})") from None
        # A text tower and snapshots are opened from the folder later.
        if reads_text(model) or model.snapshots is not None:
            weakref.finalize(model, stack.pop_all().close)
    return model


def require_safetensors(files: Iterable[str]) -> None:
    """Refuse files of weights in another format than safetensors, whatever their names say.

    Raises:
        CheckpointError: one is in another format.
    """
    for path in map(Path, files):
        if path.suffix.lower() not in SIDECAR_SUFFIXES and path.is_file():
            with path.open("rb") as file:
                start = file.read(9)
            if start[8:9] != b"{":
                raise CheckpointError(f"{path.name}: this server opens weights as safetensors alone")


def _link(file: str, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


@dataclass(frozen=True)
class Origin:
    """Model, picture and input of an analysis, and its latest results.

    Args:
        choice: the model.
        upload: the picture.
        size: its width and height in pixels.
        fit: a name in :data:`vitviz.images.preprocessing.FITS`.
        resolution: as a view of a state has it.
        pixels: the shorter side of the model's input, as :func:`vitviz.analyze` takes it.
        hidden_share: of the picture's area, in [0, 1], that the model's own crop would hide, where it is shown whole
            for this reason; otherwise 0.
        maps, likenesses: the latest maps, and likenesses to pictures, by their requests.
        flip: the reply to a request for squares that change the answer; empty before.
    """

    choice: ModelChoice
    upload: Upload
    size: tuple[int, int]
    fit: Fit
    resolution: int | str | None
    pixels: int | None
    hidden_share: float = 0.0
    maps: Holdings[Heatmap] = field(default_factory=lambda: Holdings(MAX_MAPS))
    likenesses: Holdings[Target] = field(default_factory=lambda: Holdings(MAX_LIKENESSES))
    flip: dict[str, Any] = field(default_factory=dict)


def source_of(choice: ModelChoice, model: Model) -> str:
    """The argument of :func:`vitviz.load` for a model; of a visitor's own checkpoint, its file or their folder."""
    if choice.is_loose:
        return "."
    return SERIES if choice.files and model.snapshots is not None else choice.source or choice.name


def menu(start: Model, legal: str = "all") -> list[dict[str, Any]]:
    """The menu of models: that of the start, then the named ones, with the size of the download in megabytes.

    Args:
        start: the model with which the app starts.
        legal: a name in :data:`vitviz.ui.server.settings.MODELS`, for the models that may be opened.
    """
    first = {"id": "", "title": title_of(start), "family": family_of(start), "megabytes": 0}
    if legal == "start":
        return [first]
    bundled = [
        {"id": name, "title": name, "family": "vitviz", "megabytes": 0} for name in BUNDLED if name != start.name
    ]
    named = [
        {"id": model.name, "title": model.title, "family": model.family, "megabytes": megabytes(model)}
        for model in ZOO.values()
        if model.name != start.name
    ]
    return [first, *bundled, *named]


def title_of(model: Model) -> str:
    """The title of a model in the menu: the architecture of a named one, otherwise the name of its file."""
    return ZOO[model.name].title if model.name in ZOO else model.name


def family_of(model: Model) -> str:
    """The group of a model in the menu; a file's is its recognised family."""
    if model.name in ZOO:
        return ZOO[model.name].family
    # The card has the source of the name in parentheses; vitviz's own files have no family.
    return model.card.get("family", "vitviz").partition(" (")[0]


def megabytes(model: NamedModel) -> float:
    """The size of the download in millions of bytes; 0 if the model is here."""
    return 0 if is_cached(model.repository) else model.megabytes
