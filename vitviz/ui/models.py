"""The models of the menu, and visitors' own checkpoints."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vitviz import isolation
from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.errors.messages import listing
from vitviz.isolation import Worker, shared_worker
from vitviz.weights import (
    BUNDLED,
    ZOO,
    DownloadProgress,
    Model,
    NamedModel,
    fetch,
    find_snapshots,
    is_cached,
    load,
)
from vitviz.weights.formats.files import SUFFIXES
from vitviz.weights.hub.names import INDEX_SUFFIX
from vitviz.weights.text_tower import reads_text


class ModelChoice(NamedTuple):
    """A model as a visitor chose it.

    Args:
        source: a name, ``hf:OWNER/NAME``, or empty for uploaded files.
        files: paths of the uploaded files.
        overrides: what the user says of them.
        step: which of its snapshots; None for the last, and for a model without them.
    """

    source: str
    files: tuple[str, ...] = ()
    overrides: tuple[tuple[str, Any], ...] = ()
    step: int | None = None

    @property
    def run(self) -> ModelChoice:
        """The same for all of its snapshots."""
        return self._replace(step=None)

    @property
    def weight_files(self) -> tuple[str, ...]:
        """Those of the uploaded files that hold weights, by their endings."""
        return tuple(file for file in self.files if file.endswith(SUFFIXES))

    @property
    def largest_file(self) -> str:
        """The name of the largest file with weights; of the largest of all where none has them."""

        def size(file: str) -> int:
            path = Path(file)
            return path.stat().st_size if path.is_file() else 0

        return Path(max(self.weight_files or self.files, key=size)).name


DEFAULT_MODEL = ModelChoice("start")
"""The model with which the page opened."""
MAX_OWN = 1000
OWN_GONE = "This checkpoint is no longer kept on this server: open it again under Model."
# Numbers may be stored in half of the bytes that they take in memory.
WIDER = 2
# What snapshots are called whose run nobody names.
SERIES = "snapshots"


def open_choice(
    choice: ModelChoice,
    report: Callable[[DownloadProgress], None] | None = None,
    *,
    worker: Worker | None = None,
    max_bytes: int = 3 * 2**30,
    room: Callable[[int], AbstractContextManager[None]] = lambda nbytes: nullcontext(),
) -> Model:
    """Open what a visitor chose, in a process of its own.

    Args:
        choice: of the visitor.
        report: receives how far a download is.
        worker: that opens it; that of this process where it is not given.
        max_bytes: most that its weights may take.
        room: gives the bytes of memory that opening takes, as long as it lasts.

    Raises:
        CheckpointError, LimitError: it cannot be opened.
    """
    overrides, worker = dict(choice.overrides), worker or shared_worker()
    if not choice.files:
        origin = fetch(choice.source, report)
        # What is no checkpoint of the hub is one of vitviz's own, or none at all.
        if origin is None:
            return load(choice.source, engine="own", **overrides)
        with room(_opening_bytes(origin.folder.iterdir())):
            return isolation.open_published(worker, choice.source, origin, max_bytes, **overrides)
    missing = [Path(file).name for file in choice.files if not Path(file).is_file()]
    if missing:
        raise CheckpointError(f"{', '.join(missing)}: no longer kept on this server; upload it again")
    name = max((Path(file) for file in choice.files), key=lambda path: path.stat().st_size).stem
    needed = _opening_bytes(map(Path, choice.files))
    if len(choice.files) == 1:
        with room(needed):
            return isolation.open_checkpoint(worker, Path(choice.files[0]), max_bytes, name, **overrides)
    # An upload puts every file into a folder of its own, and a checkpoint is read with what lies beside it.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitviz-", ignore_cleanup_errors=True)))
        try:
            twice = [file for file, count in Counter(Path(file).name for file in choice.files).items() if count > 1]
            if twice:
                raise CheckpointError(f"{name}: {listing(twice)} more than once; expected every file once")
            for file in choice.files:
                _link(file, folder / Path(file).name)
            series = find_snapshots(folder)
            with room(needed):
                model = isolation.open_checkpoint(
                    worker, folder, max_bytes, name if series is None else SERIES, **overrides
                )
            if series is not None:
                model = replace(model, snapshots=series, step=series.steps[-1])
        except (CheckpointError, LimitError) as error:
            # The folder's name says nothing to anybody.
            raise type(error)(str(error).replace(folder.name, name)) from None
        except OSError as error:
            raise CheckpointError(f"{name}: cannot be opened ({error.strerror})") from None
        # A text tower and snapshots are opened from there when somebody asks for them.
        if reads_text(model) or model.snapshots is not None:
            weakref.finalize(model, stack.pop_all().close)
    return model


def _opening_bytes(files: Iterable[Path]) -> int:
    """What opening a checkpoint takes: its network in the process that reads it, and the answer of that."""
    found = list(files)
    sizes = [file.stat().st_size for file in found if file.suffix.lower() in SUFFIXES]
    # The others are other states, or the same weights in another format.
    is_sharded = any(file.name.endswith(INDEX_SUFFIX) for file in found)
    return 2 * WIDER * (sum(sizes) if is_sharded else max(sizes, default=0))


def _link(file: str, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


class OwnModel(NamedTuple):
    """A visitor's own checkpoint.

    Args:
        choice: how it is opened.
        name: what its file is called.
    """

    choice: ModelChoice
    name: str


class OwnModels:
    """Visitors' own checkpoints by ids that nobody can guess; the last ones only."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, OwnModel] = OrderedDict()
        self._lock = threading.Lock()

    def id(self, own: OwnModel) -> str:
        """The id of a checkpoint: ``own:TOKEN``."""
        with self._lock:
            key = next((key for key, each in self._held.items() if each == own), None)
            key = f"own:{secrets.token_urlsafe(16)}" if key is None else key
            self._held[key] = own
            self._held.move_to_end(key)
            if len(self._held) > MAX_OWN:
                self._held.popitem(last=False)
        return key

    def get(self, key: str) -> OwnModel:
        """The checkpoint of an id.

        Raises:
            CheckpointError: it is not kept, or never was.
        """
        with self._lock:
            found = self._held.get(key)
        if found is None:
            raise CheckpointError(OWN_GONE)
        return found


def menu(start: Model, legal: str = "all") -> list[dict[str, Any]]:
    """What the menu offers: the model of the start, then the named ones by family, with what they cost to download.

    Args:
        start: the model with which the app starts.
        legal: which models may be opened, by name in :data:`vitviz.ui.server.settings.MODELS`.
    """
    first = {"id": "", "title": title_of(start), "family": _family_of(start), "megabytes": 0}
    if legal == "start":
        return [first]
    bundled = [
        {"id": name, "title": name, "family": "vitviz", "megabytes": 0} for name in BUNDLED if name != start.name
    ]
    named = [
        {"id": each.name, "title": each.title, "family": each.family, "megabytes": megabytes(each)}
        for each in ZOO.values()
        if each.name != start.name
    ]
    return [first, *bundled, *named]


def title_of(model: Model) -> str:
    """What the menu calls a model: a named one by its architecture, a file by its name."""
    return ZOO[model.name].title if model.name in ZOO else model.name


def _family_of(model: Model) -> str:
    """The group that a model stands in; that of a file is the family as which it was recognised."""
    if model.name in ZOO:
        return ZOO[model.name].family
    # Behind it stands, in parentheses, where that is known from; vitviz's own files do not say it.
    return model.card.get("family", "vitviz").partition(" (")[0]


def megabytes(model: NamedModel) -> float:
    """What is to be downloaded first, in millions of bytes."""
    return 0 if is_cached(model.repository) else model.megabytes
