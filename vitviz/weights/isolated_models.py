"""Checkpoints and text towers of strangers, opened in a child; the results equal those of the library's functions."""

from __future__ import annotations

import math
import weakref
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.images.isolated_pictures import GIB, Ask, Parts
from vitviz.models.config import ViTConfig
from vitviz.models.targets import Target
from vitviz.weights.formats.files import open_weights
from vitviz.weights.model import Model, Origin
from vitviz.weights.native import DTYPE_NAMES, bytes_of, metadata_of, model_from, read_native, tensors_of
from vitviz.weights.overrides import Stated
from vitviz.weights.read import read
from vitviz.weights.sources import Place
from vitviz.weights.text_tower import TextTower, tower_from_origin
from vitviz.worker import Child, Limits, Worker

# The processor time is for an empty file; each of so many bytes adds as much.
MODEL_LIMITS = Limits(GIB, 5, 900, answer_bytes=GIB, total_cpu_seconds=300)
CPU_BYTES = GIB // 8
# For opening a text tower, and for each text. transformers reads weights by threads.
TOWER_LIMITS = Limits(GIB, 120, 900, answer_bytes=2**40, total_cpu_seconds=3600, threads=True)


def warm_up() -> None:
    """Nothing but the imports of this module, in the fork server."""


def read_model(ask: Ask, path: Path, name: str | None, max_bytes: int, overrides: dict[str, Any]) -> Parts:
    """The contents of a checkpoint of vitviz: its header, and each tensor."""
    model = read(path, Stated.of(max_bytes=max_bytes, **overrides), name).model
    folder = None if model.origin is None else str(model.origin.folder)
    yield from _contents(model, {"assumptions": list(model.assumptions), "folder": folder})


def read_snapshot(ask: Ask, path: Path, name: str, max_bytes: int) -> Parts:
    """The same of one snapshot of a model in training."""
    yield from _contents(read_native(open_weights(path), name, max_bytes), {"assumptions": [], "folder": None})


def _contents(model: Model, facts: dict[str, Any]) -> Parts:
    tensors = tensors_of(model)
    yield {**facts, "name": model.name, "metadata": metadata_of(model), "tensors": len(tensors)}, b""
    for key, tensor in tensors.items():
        yield {"key": key, "dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape)}, bytes_of(tensor)


def read_texts(ask: Ask, name: str, origin: Origin, config: ViTConfig) -> Parts:
    """Scale and bias of a text tower's logit; then for each request, a text, its features."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True
    tower = tower_from_origin(name, origin, config)
    yield {"scale": tower.scale, "bias": tower.bias}, b""
    while True:
        yield {}, tower.features(ask()).float().numpy()


def open_checkpoint(worker: Worker, path: Path, max_bytes: int, name: str | None = None, **overrides: Any) -> Model:
    """The model of a file or a folder, as :func:`vitviz.load` returns it.

    Args:
        path, name, overrides: as for :func:`vitviz.load`.
        max_bytes: limit of its weights in memory.

    Raises:
        CheckpointError, LimitError: as :func:`vitviz.load`, or the child exceeds a limit.
    """
    path = path.absolute()
    root = path if path.is_dir() else path.parent
    return _model(worker, "read_model", (path, name, max_bytes, overrides), name or path.name, root, max_bytes)


def open_published(worker: Worker, source: str, origin: Origin, max_bytes: int, **overrides: Any) -> Model:
    """The model of a published checkpoint in the hub's cache; nothing is downloaded.

    Args:
        source, overrides: as for :func:`vitviz.load`.
        origin: returned for it by :func:`vitviz.weights.fetch`.
        max_bytes: limit of its weights in memory.

    Raises:
        CheckpointError, LimitError: as :func:`open_checkpoint`.
    """
    place = Place.published(source, origin)
    named = {} if place.named is None else place.named.overrides
    with place.errors():
        return place.label(open_checkpoint(worker, place.path, max_bytes, place.name, **{**named, **overrides}))


def open_snapshot(worker: Worker, path: Path, name: str, max_bytes: int) -> Model:
    """One snapshot of a model in training.

    Raises:
        CheckpointError, LimitError: as :func:`open_checkpoint`.
    """
    return _model(worker, "read_snapshot", (path.absolute(), name, max_bytes), name, path.parent, max_bytes)


def _model(worker: Worker, reader: str, arguments: tuple[Any, ...], name: str, root: Path, max_bytes: int) -> Model:
    # Twice the weights: the network, and a tensor as it is in the file. The rest is for the objects of a pickle.
    limits = replace(MODEL_LIMITS, memory_bytes=2 * max_bytes + GIB, answer_bytes=max_bytes + 2**26)
    files = arguments[0].iterdir() if arguments[0].is_dir() else [arguments[0]]
    nbytes = sum(file.stat().st_size for file in files if file.is_file())
    limits = replace(limits, cpu_seconds=round(limits.cpu_seconds * (1 + nbytes / CPU_BYTES), 1))
    with worker.child(f"{__name__}:{reader}", arguments, limits, CheckpointError, name) as child:
        facts, _ = child.part()
        try:
            tensors = dict(_tensor(*child.part()) for _ in range(facts["tensors"]))
            model = model_from(facts["metadata"], tensors, str(facts["name"]), max_bytes)
            assumptions, folder = tuple(map(str, facts["assumptions"])), facts["folder"]
        except (KeyError, TypeError, ValueError, RuntimeError):
            raise child.answer_error() from None
    # The text tower is opened from this folder, so a child must not name one outside of the checkpoint's.
    is_inside = isinstance(folder, str) and Path(folder).is_relative_to(root)
    return replace(model, origin=Origin(Path(folder)) if is_inside else None, assumptions=assumptions)


def _tensor(facts: dict[str, Any], data: bytearray) -> tuple[str, torch.Tensor]:
    dtype = next(each for each, name in DTYPE_NAMES.items() if name == facts["dtype"])
    empty = torch.empty(0, dtype=dtype)
    return str(facts["key"]), (torch.frombuffer(data, dtype=dtype) if data else empty).reshape(facts["shape"])


class IsolatedTower:
    """The text tower of a checkpoint, in a child that lives as long as this object.

    Args:
        worker: that starts the child.
        model: of the checkpoint.
        max_bytes: limit of the child's private memory.

    Raises:
        CheckpointError, ConfigError: as :func:`vitviz.weights.text_tower.open_text_tower`.
    """

    def __init__(self, worker: Worker, model: Model, max_bytes: int) -> None:
        origin, config = model.origin, model.own_network(f"texts for {model.name}").config
        if origin is not None:
            # The working folder of the other process may differ.
            origin = replace(origin, folder=origin.folder.absolute())
        # Libraries and mapped weights take address space, but no private memory.
        limits = replace(TOWER_LIMITS, memory_bytes=2 * max_bytes + 2 * GIB, private_bytes=max_bytes)
        stack = ExitStack()
        arguments = (model.name, origin, config)
        child = worker.child(f"{__name__}:read_texts", arguments, limits, CheckpointError, model.name)
        self._child = stack.enter_context(child)
        self._width, self._lock = config.features, Lock()
        self._end = weakref.finalize(self, stack.close)
        facts, _ = self._child.part()
        scale, bias = (_number(self._child, facts, name) for name in ("scale", "bias"))
        self._tower = TextTower(self._features, scale, bias)

    def target(self, text: str) -> Target:
        """See :meth:`vitviz.weights.text_tower.TextTower.target`."""
        return self._tower.target(text)

    def close(self) -> None:
        """End the child."""
        self._end()

    def _features(self, text: str) -> torch.Tensor:
        with self._lock:
            _, data = self._child.part(text)
        if len(data) != 4 * self._width:
            raise self._child.answer_error()
        features = torch.frombuffer(data, dtype=torch.float32)
        if not features.isfinite().all():
            raise self._child.answer_error()
        return features


def _number(child: Child, facts: dict[str, Any], name: str) -> float:
    value = facts.get(name)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise child.answer_error()
    return float(value)
