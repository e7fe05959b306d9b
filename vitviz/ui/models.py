"""The model menu of the app, and the user's own checkpoints."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from vitviz import isolation
from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.errors.messages import listed
from vitviz.isolation import Worker, shared_worker
from vitviz.ui.controls import NumberSlider
from vitviz.weights import (
    BUNDLED,
    OVERRIDES,
    ZOO,
    DownloadProgress,
    Model,
    NamedModel,
    fetch,
    find_snapshots,
    is_cached,
    load,
    parse_overrides,
)
from vitviz.weights.formats.files import SUFFIXES
from vitviz.weights.hub.names import INDEX
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


START = ModelChoice("start")
"""The model with which the page opened."""
LOST = ModelChoice("lost")
"""What the server knows of the model of a page that it does not remember, until the page is loaded anew."""
LOST_MESSAGE = (
    "this server does not remember this page any more (it was away for long, too many were open, or the server was "
    "started again): reload it; its link restores what it showed"
)
# The entry of the menu that stands for the visitor's own checkpoint while it is open.
OWN = "own"
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
            return load(choice.source, **overrides)
        with room(_opening_bytes(origin.folder.iterdir())):
            return isolation.published(worker, choice.source, origin, max_bytes, **overrides)
    missing = [Path(file).name for file in choice.files if not Path(file).is_file()]
    if missing:
        raise CheckpointError(f"{', '.join(missing)}: no longer kept on this server; upload it again")
    name = max((Path(file) for file in choice.files), key=lambda path: path.stat().st_size).stem
    needed = _opening_bytes(map(Path, choice.files))
    if len(choice.files) == 1:
        with room(needed):
            return isolation.checkpoint(worker, Path(choice.files[0]), max_bytes, name, **overrides)
    # An upload puts every file into a folder of its own, and a checkpoint is read with what lies beside it.
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vitviz-", ignore_cleanup_errors=True)))
        try:
            twice = [file for file, count in Counter(Path(file).name for file in choice.files).items() if count > 1]
            if twice:
                raise CheckpointError(f"{name}: {listed(twice)} more than once; expected every file once")
            for file in choice.files:
                _link(file, folder / Path(file).name)
            series = find_snapshots(folder)
            with room(needed):
                model = isolation.checkpoint(worker, folder, max_bytes, name if series is None else SERIES, **overrides)
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
    is_sharded = any(file.name.endswith(INDEX) for file in found)
    return 2 * WIDER * (sum(sizes) if is_sharded else max(sizes, default=0))


def _link(file: str, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _step(model: Model) -> dict[str, Any]:
    """The slider over the snapshots of a model, by their places; not shown where it has none."""
    if model.snapshots is None:
        return {"maximum": 1, "value": 0, "label": "Training step", "visible": False}
    steps = model.snapshots.steps
    place = steps.index(steps[-1] if model.step is None else model.step)
    label = f"Training step {steps[place]:,} of {steps[-1]:,}"
    return {"maximum": len(steps) - 1, "value": place, "label": label, "visible": True}


def _cost(model: NamedModel) -> str:
    return "ready" if is_cached(model.repository) else f"{model.megabytes:,.0f} MB"


class ModelPicker:
    """The menu of models, and the way to open one's own.

    Args:
        start: the model with which the page opens.
        legal: which models may be opened, by name in :data:`vitviz.ui.knobs.MODELS`.
    """

    def __init__(self, start: Model, legal: str = "all") -> None:
        self.start, self.legal = start, legal
        self.menu = gr.Dropdown(
            self.choices(),
            value=START.source,
            label="Model",
            info="MB: to be downloaded first",
            elem_id="vv-model",
        )
        self.step = NumberSlider(0, step=1, buttons=[], elem_id="vv-step", **_step(start))

    def render_own(self) -> None:
        """The part for one's own checkpoint."""
        self.files = gr.File(
            label="A file, or the files of its folder",
            file_count="multiple",
            height=110,
            elem_id="vv-files",
        )
        self.hub = gr.Textbox(
            label="or of the Hugging Face hub", placeholder="owner/name", max_lines=1, max_length=200, elem_id="vv-hub"
        )
        self.overrides = gr.Textbox(
            label="What its file leaves open",
            placeholder="heads=6, pooling=mean",
            info=f"only where a message asks for it: {', '.join(OVERRIDES)}",
            max_lines=1,
            max_length=300,
            elem_id="vv-facts",
        )
        self.open = gr.Button("Open", size="sm", elem_id="vv-open")

    def choices(self, own: str | None = None) -> list[tuple[str, str]]:
        """What the menu offers: the model of the start, then the named ones by family, with what they cost.

        Args:
            own: the name of the visitor's own checkpoint, while it is open.
        """
        first = (f"vitviz · {self.start.name} · ready", START.source)
        if self.legal == "start":
            return [first]
        named = [(f"{model.family} · {model.title} · {_cost(model)}", model.name) for model in ZOO.values()]
        bundled = [(f"vitviz · {name} · ready", name) for name in BUNDLED if name != self.start.name]
        mine = [] if own is None else [(f"yours · {own}", OWN)]
        return [*mine, first, *bundled, *named]

    @property
    def shows(self) -> list[Any]:
        """What :meth:`shown` changes."""
        return [self.menu, self.step]

    def shown(self, choice: ModelChoice, model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
        """The menu and the training step while a model is open."""
        step = gr.update(**_step(model))
        if choice.source in (START.source, *BUNDLED, *ZOO):
            return gr.update(choices=self.choices(), value=choice.source), step
        return gr.update(choices=self.choices(model.name), value=OWN), step

    def shown_step(self, model: Model) -> dict[str, Any]:
        """What is said of the training step while its slider may be on its way to another."""
        return gr.update(label=_step(model)["label"])

    def named(self, name: str) -> ModelChoice:
        """What an entry of the menu stands for; of the visitor's own checkpoint, the menu alone does not know."""
        return {START.source: START, OWN: LOST}.get(name, ModelChoice(name))

    def own(self, files: Sequence[str] | None, hub: str, overrides: str) -> ModelChoice:
        """The choice that the part for one's own checkpoint stands for.

        Raises:
            CheckpointError: nothing is given, or two things, or facts that cannot be.
        """
        told = tuple(parse_overrides([part for part in overrides.split(",") if part.strip()]).items())
        hub = hub.strip().removeprefix("hf:").removeprefix("https://huggingface.co/").strip("/")
        if bool(files) == bool(hub):
            raise CheckpointError("Your own checkpoint: expected either its file, or its name on the hub")
        if files:
            return ModelChoice("", tuple(files), told)
        return ModelChoice(f"hf:{hub}", (), told)
