"""What a part of the benchmark is: cases, and contestants that do the same for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.shapes import Shape, tiny

Run = Callable[[], object]
"""Does once what is measured, and returns its result."""
Make = Callable[[], Run]
"""Opens the model and makes everything ready."""
Facts = dict[str, dict[str, dict[str, float]]]
"""Numbers that are no contest: by table, row and column."""


@dataclass(frozen=True)
class Settings:
    """What a person chose.

    Args:
        folder: where checkpoints with random weights are written, for all processes of one case.
        threads: of torch.
        repeats: of every contestant; those of the case where it is not given.
        quick: tiny stand-ins instead of the models.
        vit_explain: a checkout of jacobgil/vit-explain.
    """

    folder: Path
    threads: int
    repeats: int | None = None
    quick: bool = False
    vit_explain: Path | None = None


@dataclass(frozen=True)
class Case:
    """One setting in which contestants meet.

    Args:
        shape: of the model.
        repeats: how often each contestant is timed.
        memory: whether their peak memory is measured too.
        images: how many each contestant does at once; what is reported is the time for one.
        resolution: at which a model of the shape is used, where that is not the trained one.
        variant: what distinguishes cases of the same shape.
    """

    shape: Shape
    repeats: int
    memory: bool = False
    images: int = 1
    resolution: int | None = None
    variant: str = ""

    @property
    def seen(self) -> Shape:
        """The shape for the images that are used."""
        return self.shape if self.resolution is None else self.shape.at(self.resolution)

    @property
    def name(self) -> str:
        return self.variant or self.seen.title

    def stand_in(self) -> Case:
        """The same with a tiny network, for trying out what measures it."""
        resolution = self.resolution and tiny(self.resolution, self.shape.patch)
        return replace(self, shape=self.shape.stand_in(), repeats=2, images=min(self.images, 4), resolution=resolution)


@dataclass(frozen=True)
class Part:
    """A question and its contestants.

    Args:
        name: on the command line.
        title, note: above its tables.
        cases: in the order of the tables.
        contestants: by name, made ready only when asked; what all are compared with is the first. None where there
            is no contest.
        facts: what is measured without contestants.
        tried: the cases of which stand-ins suffice to try out the part.
        paired: whether contestants differ so little that their order and other processes would decide. Then every
            second round goes backwards, processor time is counted, that of processes which a run starts and ends too,
            and each ratio has a confidence interval.
    """

    name: str
    title: str
    note: str
    cases: tuple[Case, ...]
    contestants: Callable[[Case, Settings], dict[str, Make]] | None = None
    facts: Callable[[Case, Settings], Facts] | None = None
    tried: tuple[int, ...] = field(default=(0,))
    paired: bool = False

    def chosen(self, settings: Settings) -> list[Case]:
        """The cases, or their stand-ins."""
        if settings.quick:
            return [self.cases[index].stand_in() for index in self.tried]
        return list(self.cases)
