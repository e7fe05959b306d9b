"""What a benchmark is: cases, and contestants that do the same for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import vitviz
from benchmarks.networks import Shape, own_network_of, timm_model
from vitviz import Model

Run = Callable[[], object]
"""Performs the measured operation once and returns its result."""
MIB = 2**20


def time_of(run: Run, clock: Callable[[], float] = perf_counter) -> float:
    """The seconds of one run by a clock."""
    start = clock()
    result = run()
    duration = clock() - start
    # Freed after the clock stops, since freeing memory is not part of the run.
    del result
    return duration


@dataclass(frozen=True)
class Settings:
    """Settings from the command line.

    Args:
        folder: for the files of one case.
        threads: of torch.
        quick: a tiny stand-in for the first case.
        vit_explain: a checkout of jacobgil/vit-explain.
    """

    folder: Path
    threads: int
    quick: bool = False
    vit_explain: Path | None = None


@dataclass(frozen=True)
class Case:
    """One setting in which contestants are compared.

    Args:
        shape: of the model.
        repeats: how often each contestant is timed.
        memory: whether their peak memory is measured, too.
        images: how many a run computes; the time for one is reported.
        variant: distinguishes cases of the same shape.
    """

    shape: Shape
    repeats: int
    memory: bool = False
    images: int = 1
    variant: str = ""

    @property
    def name(self) -> str:
        return self.variant or self.shape.title


@dataclass(frozen=True)
class Models:
    """The models of a case, created on first use, so that a process holds only those that it measures.

    timm's and vitviz's have the same random weights.
    """

    case: Case
    settings: Settings

    @cached_property
    def pixels(self) -> torch.Tensor:
        """One image, ``"1 channel height width"``."""
        side = self.case.shape.image
        return torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))

    @cached_property
    def timm(self) -> Any:
        return timm_model(self.case.shape)

    @cached_property
    def vitviz(self) -> Model:
        return self.open("own")

    def open(self, engine: str, precision: str = "float32") -> Model:
        """A new model of vitviz, with timm's weights or as timm's module itself."""
        options: dict[str, Any] = {"normalisation": "imagenet", "labels": self.case.shape.labels}
        if engine == "module":
            return vitviz.load(self.timm, **options)
        return own_network_of(self.timm, self.case.shape, precision=precision, **options)


Make = Callable[[Models], Run | None]
"""Prepares the run, with the models of its case; None where the contestant does not take part."""


@dataclass(frozen=True)
class Benchmark:
    """Cases and contestants, or facts, that answer one question.

    Args:
        name: on the command line.
        title, note: above its tables.
        cases: in the order of the tables.
        contestants: by name; the first is the baseline.
        facts: numbers in place of contestants.
        bars: upper limits, one for each case or None, by the contestant and what is limited: ``"time"``, as a multiple
            of the baseline's; ``"memory"`` in bytes; ``"interval"``, where the limit has to lie in the confidence
            interval of that multiple; or a fact by its name, without a contestant.
        paired: whether contestants differ so little that their order and other processes would decide. Then every
            second round runs in reverse order, and processor time is measured, including that of child processes that
            end.
    """

    name: str
    title: str
    note: str
    cases: tuple[Case, ...]
    contestants: Mapping[str, Make] = field(default_factory=dict)
    facts: Callable[[Models], Mapping[str, float]] | None = None
    bars: Mapping[tuple[str, str], Sequence[float | None]] = field(default_factory=dict)
    paired: bool = False

    def select_cases(self, settings: Settings) -> list[Case]:
        """The cases, or a stand-in for the first one with a tiny network, to try out the benchmark."""
        first = self.cases[0]
        stand_in = replace(first, shape=first.shape.stand_in(), repeats=2, images=min(first.images, 4))
        return [stand_in] if settings.quick else list(self.cases)
