"""What a benchmark is: cases, and contestants that do the same for each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.shapes import Shape, tiny

Run = Callable[[], object]
"""Performs the measured operation once and returns its result."""
Make = Callable[[], Run]
"""Opens the model, and returns the run."""


@dataclass(frozen=True)
class Settings:
    """Settings from the command line.

    Args:
        folder: for the files of one case.
        threads: of torch.
        repeats: of every contestant; by default those of the case.
        quick: a tiny stand-in for the first case.
        vit_explain: a checkout of jacobgil/vit-explain.
    """

    folder: Path
    threads: int
    repeats: int | None = None
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
        resolution: of the input, if it is not the trained one.
        variant: distinguishes cases of the same shape.
    """

    shape: Shape
    repeats: int
    memory: bool = False
    images: int = 1
    resolution: int | None = None
    variant: str = ""

    @property
    def input_shape(self) -> Shape:
        """The shape at the resolution of the input."""
        return self.shape if self.resolution is None else self.shape.at(self.resolution)

    @property
    def name(self) -> str:
        return self.variant or self.input_shape.title

    def stand_in(self) -> Case:
        """The same case with a tiny network, to try out the benchmark."""
        resolution = self.resolution and tiny(self.resolution, self.shape.patch)
        return replace(self, shape=self.shape.stand_in(), repeats=2, images=min(self.images, 4), resolution=resolution)


def no_contestants(case: Case, settings: Settings) -> dict[str, Make]:
    return {}


@dataclass(frozen=True)
class Benchmark:
    """Cases and contestants, or facts, that answer one question.

    Args:
        name: on the command line.
        title, note: above its tables.
        cases: in the order of the tables.
        contestants: by name, prepared on demand; the first is the baseline.
        facts: numbers in place of contestants.
        paired: whether contestants differ so little that their order and other processes would decide. Then every
            second round runs in reverse order, and processor time is measured, including that of child processes that
            end.
    """

    name: str
    title: str
    note: str
    cases: tuple[Case, ...]
    contestants: Callable[[Case, Settings], dict[str, Make]] = no_contestants
    facts: Callable[[Case, Settings], Mapping[str, float]] | None = None
    paired: bool = False

    def select_cases(self, settings: Settings) -> list[Case]:
        """The cases, or the stand-in for the first one."""
        return [self.cases[0].stand_in()] if settings.quick else list(self.cases)
