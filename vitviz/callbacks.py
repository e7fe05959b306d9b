"""Attention while a network is trained: pictures for the log, and alarms when heads collapse or sinks appear.

``AttentionWatch`` serves a plain loop, ``LightningAttention`` the trainer of Lightning, and ``TrainerAttention`` that
of transformers. The last two derive from the callbacks of these packages, imported when the name is first used.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import Encoder
from vitviz.attention.sinks import SINK_RATIO, sink_patches
from vitviz.errors.arguments import instance, integer, named_fields, no_parameter
from vitviz.errors.extras import needs, optional
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices, describe, several
from vitviz.evaluation.head_table import measure_heads
from vitviz.images.sources import ImageSource, check_several
from vitviz.models.watched.module_state import device_of
from vitviz.visualization.heatmaps import Heatmap
from vitviz.weights import load
from vitviz.weights.modules.unwrap import unwrap

# Pixels of a picture's longer side in the log.
SIDE_PX = 96
# A head attends to exp(entropy) tokens. Of 18 heads that were measured, none came below 3 at a rate at which a network
# learnt, and half of them fell below 2 at ten times that rate. Entropy near zero comes before training diverges: Zhai
# et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse" (arXiv 2303.06296).
ONE_TOKEN = 2.0
# Shares of the largest entropy, that of even attention: above the first, a head no longer chooses between tokens; below
# the second, it does. Heads of the bundled model have 0.43 to 0.94.
EVEN_SHARE, CHOOSING_SHARE = 0.99, 0.95
# None of these heads moves by more than a factor of 6 at a rate at which the network learns, and 8 do at ten times that
# rate.
ENTROPY_FACTOR = 8.0
# What has happened, and why it matters, by the kind of alarm.
KINDS = {
    "one token": (
        f"heads that attend to fewer than {ONE_TOKEN:g} tokens",
        "Entropy near zero comes before training diverges (Zhai et al. 2023).",
    ),
    "even attention": (
        f"heads with more than {EVEN_SHARE:.0%} of the largest entropy",
        "They no longer choose between tokens.",
    ),
    "entropy": (
        f"heads that attend to {ENTROPY_FACTOR:g} times fewer or more tokens than for any picture at first",
        "Healthy training was never measured to move them so far.",
    ),
    "sinks": (
        f"patches that receive more than {SINK_RATIO:g} even shares of a layer's attention, and did not at first",
        "The network uses them as scratch space, which registers prevent (Darcet et al. 2024, Xiao et al. 2024).",
    ),
}

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Alarm:
    """Something that has happened to the attention since the beginning.

    Args:
        step: of the training.
        kind: a name in :data:`KINDS`.
        places: pairs of layer and head; for sinks, of picture and token.
        sentence: what happened, where, and why it matters.
    """

    step: int
    kind: str
    places: tuple[tuple[int, int], ...]
    sentence: str


@named_fields(ConfigError)
class AttentionWatch:
    """Logs the attention to a few pictures every N steps, and raises alarms; call it with the number of each step.

    The first check is made at once, so that a wrong argument, or a network whose attention cannot be watched, is
    refused before the training starts; what happens later is compared with it. A later failure is a warning of the
    logger ``vitviz.callbacks``, once for each message, and never ends the training. Alarms are warnings there, too, and
    texts of the log; each head is reported once for each kind.

    A check costs a forward pass for each picture. It leaves the network's modes, gradients and hooks and all random
    numbers as they are. Hooks of the network run in it like in any forward pass.

    Args:
        network: the module that is trained, as :func:`vitviz.load` takes it, in any mode.
        pictures: whose attention is shown, as :func:`vitviz.analyze` takes them.
        log: anything with ``add_image(name, array, step)``, such as TensorBoard's ``SummaryWriter``.
        every: steps between two checks.
        step: number of the first check.
        options: what the module does not state, as arguments of :func:`vitviz.load`: ``preprocessing``, ``labels``, …

    Attributes:
        alarms: so far.

    Raises:
        ConfigError: the log has no ``add_image``, the pictures are none or a single one, there is no such option, or as
            :func:`vitviz.load`.
        ImageError: a picture cannot be opened.
    """

    def __init__(
        self,
        network: nn.Module,
        pictures: Iterable[ImageSource],
        log: Any,
        *,
        every: int = 500,
        step: int = 0,
        **options: Any,
    ) -> None:
        _check(type(self), pictures, options)
        self.every, self.log, self.alarms = integer("every", every, 1), log, list[Alarm]()
        if not callable(getattr(log, "add_image", None)):
            raise ConfigError(
                f"log: {describe(log)} found; expected an object with add_image, such as TensorBoard's writer"
            )
        self.module, self._step = unwrap(instance("network", network, nn.Module, "model.network")), step
        self._reported, self._failures = set[tuple[str, tuple[int, int]]](), set[str]()
        with undisturbed(self.module):
            self._encoder = Encoder(load(self.module, **options))
            self._pictures = [self._encoder.prepare(picture, number) for number, picture in enumerate(pictures)]
            if not self._pictures:
                raise ConfigError("pictures: none found; expected at least one")
            analyses = self._draw(step)
        self._first, self._first_sinks = _entropies(analyses), [set(sink_patches(each.trace)) for each in analyses]
        self._lowest = self._highest = self._first.mean(0)
        self._largest = sum(math.log(each.trace.layout.token_count) for each in analyses) / len(analyses)

    def __call__(self, step: int) -> list[Alarm]:
        """Check the attention if ``every`` steps have passed; the new alarms."""
        if step // self.every == self._step // self.every:
            return []
        self._step = step
        try:
            with undisturbed(self.module):
                analyses = self._draw(step)
                new = self._new_alarms(step, analyses)
            for alarm in new:
                logger.warning(alarm.sentence)
                if hasattr(self.log, "add_text"):
                    self.log.add_text("attention alarms", alarm.sentence, step)
        # A training that takes days does not end for a picture of it.
        except Exception as error:
            message = f"attention is not logged: {type(error).__name__}: {error}"
            if message not in self._failures:
                self._failures.add(message)
                logger.warning("step %d: %s", step, message)
            return []
        self.alarms += new
        return new

    def _draw(self, step: int) -> list[Analysis]:
        analyses = [self._encoder.encode([picture])[0] for picture in self._pictures]
        for name, heatmaps in (
            ("attention rollout", [each.rollout() for each in analyses]),
            ("attention of the last layer", [each.attention() for each in analyses]),
        ):
            self.log.add_image(name, sheet(heatmaps), step)
        return analyses

    def _new_alarms(self, step: int, analyses: list[Analysis]) -> list[Alarm]:
        entropy, margin, alarms = _entropies(analyses).mean(0), math.log(ENTROPY_FACTOR), list[Alarm]()
        self._lowest, self._highest = self._lowest.minimum(entropy), self._highest.maximum(entropy)
        # A head that was like this all the time has not collapsed.
        is_one = (entropy < math.log(ONE_TOKEN)) & (self._highest > math.log(2 * ONE_TOKEN))
        is_even = (entropy > EVEN_SHARE * self._largest) & (self._lowest < CHOOSING_SHARE * self._largest)
        is_beyond = (entropy < self._first.amin(0) - margin) | (entropy > self._first.amax(0) + margin)
        states = {"one token": is_one, "even attention": is_even, "entropy": is_beyond & ~is_one & ~is_even}
        now, first = entropy.exp(), self._first.mean(0).exp()
        found: dict[str, dict[tuple[int, int], str]] = {}
        for kind, is_member in states.items():
            counts = {
                (layer, head): f"{_tokens(now[layer, head])}, {first[layer, head]:.3g} at first"
                for layer, head in is_member.nonzero().tolist()
            }
            found[kind] = {place: f"layer {place[0]} head {place[1]} ({text})" for place, text in counts.items()}
        found["sinks"] = {
            (number, token): f"{each.trace.layout.name(token)} of picture {number}"
            for number, each in enumerate(analyses)
            for token in sink_patches(each.trace)
            if token not in self._first_sinks[number]
        }
        for kind, names in found.items():
            new = {place: name for place, name in names.items() if (kind, place) not in self._reported}
            self._reported |= {(kind, place) for place in new}
            if new:
                what, why = KINDS[kind]
                sentence = f"step {step}: {what}: {several(list(new.values()))}. {why}"
                alarms.append(Alarm(step, kind, tuple(new), sentence))
        return alarms


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every part's mode and all random numbers are as before.

    Only flags are set: a module's own ``eval()`` may do more, such as merging the weights of an adapter.
    """
    modes = [(part, part.training) for part in module.modules()]
    python_state, numpy_state, device = random.getstate(), np.random.get_state(), device_of(module)
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        try:
            for part, _ in modes:
                part.training = False
            yield
        finally:
            for part, mode in modes:
                part.training = mode
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def sheet(heatmaps: Sequence[Heatmap]) -> np.ndarray:
    """Each picture above its map: ``"channel height width"``, uint8."""
    canvas = Image.new("RGB", (SIDE_PX * len(heatmaps), 2 * SIDE_PX), "white")
    for column, heatmap in enumerate(heatmaps):
        small = heatmap.resized(SIDE_PX)
        canvas.paste(small.image, (SIDE_PX * column, 0))
        canvas.paste(small.overlay(), (SIDE_PX * column, SIDE_PX))
    return np.asarray(canvas).transpose(2, 0, 1)


def _check(cls: type, pictures: object, options: dict[str, Any]) -> None:
    """Refuse a single picture, and an option that :func:`vitviz.load` does not take for a module."""
    check_several("pictures", pictures)
    legal = [
        each
        for each in (*signature(cls).parameters, *signature(load).parameters)
        if each not in ("network", "options", "source", "engine")
    ]
    for option in options:
        if option not in legal:
            raise ConfigError(no_parameter(cls.__name__, option, legal))


def _tokens(count: torch.Tensor) -> str:
    number = f"{count:.3g}"
    return f"{number} token{'s' * (number != '1')}"


def _entropies(analyses: Iterable[Analysis]) -> torch.Tensor:
    return torch.stack([measure_heads(each.trace)["entropy"] for each in analyses])


class _TrainerHooks:
    """What the callbacks of both trainers share: their arguments, checked before there is a network.

    Args:
        pictures, every, options: as :class:`AttentionWatch` takes them.
        part: name of the network in the module that is trained, such as ``"backbone.vit"``. By default, it is the
            module itself, or in Lightning's module its only child with weights.
        log: as :class:`AttentionWatch` takes it. By default, the first logger of Lightning's trainer that has
            ``add_image``; with transformers' trainer, a ``SummaryWriter`` in the folder ``runs/attention`` of its
            output, or pass its ``TensorBoardCallback``, if that comes first.

    Attributes:
        watch: the :class:`AttentionWatch`, once the training has begun.
    """

    def __init__(
        self,
        pictures: Iterable[ImageSource],
        *,
        every: int = 500,
        part: str | None = None,
        log: Any = None,
        **options: Any,
    ) -> None:
        _check(type(self), pictures, options)
        self.pictures, self.every, self.part = list(pictures), integer("every", every, 1), part
        # Lightning replaces an attribute `log` by its own function.
        self.options, self.chosen_log = options, log
        self.watch: AttentionWatch | None = None

    @property
    def alarms(self) -> list[Alarm]:
        """The alarms so far; none before the training begins, and in processes other than the first."""
        return [] if self.watch is None else self.watch.alarms

    def _begin(self, module: nn.Module, log: Any, step: int) -> None:
        network = module
        if self.part is not None:
            try:
                network = module.get_submodule(self.part)
            except AttributeError:
                names = choices([name for name, _ in module.named_children()])
                raise ConfigError(f"part = {describe(self.part)}: this module has {names}") from None
        self.watch = AttentionWatch(network, self.pictures, log, every=self.every, step=step, **self.options)


class _Lightning(_TrainerHooks):
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        logs = [self.chosen_log] if self.chosen_log is not None else [each.experiment for each in trainer.loggers]
        log = next((each for each in logs if hasattr(each, "add_image")), trainer.logger)
        children = [name for name, child in pl_module.named_children() if any(True for _ in child.parameters())]
        if self.part is None and len(children) == 1:
            self.part = children[0]
        self._begin(pl_module, log, trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.watch is not None:
            self.watch(trainer.global_step)


class _Trainer(_TrainerHooks):
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        # transformers' TensorBoardCallback makes its writer when the training begins.
        log = getattr(self.chosen_log, "tb_writer", None) or self.chosen_log
        if log is None:
            with optional("the log"):
                from torch.utils.tensorboard import SummaryWriter
            log = SummaryWriter(str(Path(args.output_dir, "runs", "attention")))
        self._begin(model, log, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.watch is not None:
            self.watch(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.watch is not None and self.chosen_log is None:
            self.watch.log.close()


# The hooks of each callback, and the packages and class that it derives from.
_CALLBACKS = {
    "LightningAttention": (_Lightning, ("lightning.pytorch", "pytorch_lightning"), "Callback"),
    "TrainerAttention": (_Trainer, ("transformers",), "TrainerCallback"),
}

if TYPE_CHECKING:
    # With a base of any type, every trainer takes them.
    _Base: Any = object

    class LightningAttention(_Lightning, _Base): ...

    class TrainerAttention(_Trainer, _Base): ...


def __getattr__(name: str) -> Any:
    if name not in _CALLBACKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    hooks, packages, base = _CALLBACKS[name]
    # Lightning is installed under two names, and a trainer of either knows its own class only.
    found = [package for package in packages if find_spec(package.partition(".")[0])]
    if not found:
        raise ConfigError(needs(name, packages[0].partition(".")[0]))
    bases = [getattr(import_module(package), base) for package in found]
    made = type(name, (hooks, *bases), {"__module__": __name__, "__doc__": hooks.__doc__})
    globals()[name] = made = named_fields(ConfigError)(made)
    return made
