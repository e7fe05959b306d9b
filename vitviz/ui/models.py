"""The models of the menu, and visitors' own checkpoints."""

from __future__ import annotations

import re
import tempfile
import weakref
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from vitviz.errors.kinds import CheckpointError, ConfigError, LimitError
from vitviz.errors.messages import listing
from vitviz.images.preprocessing import Fit
from vitviz.models.targets import Target
from vitviz.ui.holdings import Bound, Holdings
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import Report, no_report
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import BUNDLED, ZOO, Model, load
from vitviz.weights.formats.names import is_weight_file
from vitviz.weights.hub import is_cached
from vitviz.weights.suggestions import HUB, PACKAGES


class ModelChoice(NamedTuple):
    """A visitor's choice of a model.

    Args:
        source: what :func:`vitviz.load` takes: a name, ``hf:OWNER/NAME``, a package's name, or a path of the
            operator's; empty for uploaded files.
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


# Before the name of a model of the operator's, and the most characters of that.
APP, MAX_APP_CHARS = "app:", 96
# Kept of each analysis: a map is a number per token, a likeness target the features of one token.
MAX_MAPS, MAX_LIKENESSES = 16, 8
# The name of a series of snapshots without one.
SERIES = "snapshots"


def open_choice(choice: ModelChoice, report: Report = no_report) -> Model:
    """Open a choice as :func:`vitviz.load` does.

    Args:
        choice: of the visitor, or of the operator.
        report: receives the progress of a download.

    Raises:
        CheckpointError, ConfigError, LimitError: it cannot be opened.
    """
    options = {**dict(choice.overrides), "report": report}
    if not choice.files:
        return load(choice.source, **options)
    missing = [Path(file).name for file in choice.files if not Path(file).is_file()]
    if missing:
        raise CheckpointError(f"{', '.join(missing)}: no longer kept on this server; upload it again")
    if len(choice.files) == 1:
        return load(choice.files[0], **options)
    name = max((Path(file) for file in choice.files), key=lambda path: path.stat().st_size).stem
    # Each upload has a folder of its own, but the files of a checkpoint belong beside each other.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitviz-", ignore_cleanup_errors=True)))
        try:
            repeated = [file for file, count in Counter(Path(each).name for each in choice.files).items() if count > 1]
            if repeated:
                raise CheckpointError(f"{name}: {listing(repeated)} more than once; expected every file once")
            for file in choice.files:
                (folder / Path(file).name).symlink_to(file)
            model = load(folder, **options)
        except (CheckpointError, ConfigError, LimitError) as error:
            # The message shall name the upload, not the temporary folder.
            error.args = (str(error).replace(folder.name, name),)
            raise error from None
        model = replace(model, name=name if model.snapshots is None else SERIES)
        # Other snapshots are opened from the folder later.
        if model.snapshots is not None:
            weakref.finalize(model, stack.pop_all().close)
    return model


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
    maps: Holdings[Heatmap] = field(default_factory=lambda: Holdings(Bound(MAX_MAPS), "maps"))
    likenesses: Holdings[Target] = field(default_factory=lambda: Holdings(Bound(MAX_LIKENESSES), "likeness targets"))
    flip: dict[str, Any] = field(default_factory=dict)


def model_name(source: str, model: Model) -> str:
    """The name in states of a model that the operator chose; a path has none of its own, and no visitor may see it."""
    is_public = source in (*BUNDLED, *ZOO) or source.startswith((HUB, *PACKAGES))
    return source if is_public else APP + re.sub(r"[^\w.-]", "_", model.name, flags=re.ASCII)[:MAX_APP_CHARS]


def source_of(choice: ModelChoice, model: Model) -> str:
    """The argument of :func:`vitviz.load` for a model; of a visitor's own checkpoint, its file or their folder."""
    if choice.is_loose:
        return "."
    return SERIES if choice.files and model.snapshots is not None else choice.source or choice.name


def menu(start: Model, named: Mapping[str, Model], *, opens_any: bool = True) -> list[dict[str, Any]]:
    """The menu of models: that of the start, the operator's others, and those that come with vitviz.

    Args:
        start: the model with which the app starts.
        named: the operator's others, by their names in states.
        opens_any: whether published ones may be downloaded; each is listed with its size in megabytes.
    """
    records = [ZOO[name] for name in ZOO if opens_any and name not in (start.name, *named)]
    return [
        _row("", title_of(start), family_of(start)),
        *(_row(name, title_of(model), family_of(model)) for name, model in named.items()),
        *(_row(name, name, "vitviz") for name in BUNDLED if name not in (start.name, *named)),
        *(
            _row(record.name, record.title, record.family, 0 if is_cached(record.repository) else record.megabytes)
            for record in records
        ),
    ]


def _row(name: str, title: str, family: str, megabytes: float = 0) -> dict[str, Any]:
    return {"id": name, "title": title, "family": family, "megabytes": megabytes}


def title_of(model: Model) -> str:
    """The title of a model in the menu: the architecture of a named one, otherwise the name of its file."""
    return ZOO[model.name].title if model.name in ZOO else model.name


def family_of(model: Model) -> str:
    """The group of a model in the menu; a file's is its recognised layout."""
    if model.name in ZOO:
        return ZOO[model.name].family
    # The card has the source of the name in parentheses; vitviz's own files and watched modules have no layout.
    return model.card.get("family", "vitviz" if model.engine == "own" else "other models").partition(" (")[0]
