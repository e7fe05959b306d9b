"""Random configurations, written by the package itself: vitviz has exactly its numbers, or says why it opens none."""

from __future__ import annotations

import collections
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st
from PIL import Image

from tests.parity.case import answer_of_vitviz
from tests.parity.package_answers import Answer, answer_of, expected_output, whole_patches
from tests.parity.reference_models import ReferenceModel, restored_state
from tests.support.long_runs import check_drawn
from tests.support.reading import read_any
from vitviz.errors.kinds import VitvizError
from vitviz.weights.read import Reading
from vitviz.weights.verify import Comparison, compare

PHOTO = Path(__file__).parents[2] / "assets" / "chelsea.jpg"
ASPECTS = ((90, 61), (57, 80), (64, 64))
FAILED = ("wrong numbers", "no sentence")


@dataclass(frozen=True)
class Draw:
    """A configuration.

    Args:
        kind: the architecture or the class, as the package names it.
        options: what it is made with, besides small sizes.
        files: what else is said of how it is saved, such as its preprocessing.
    """

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        said = [f"{name}={value!r}" for name, value in {**self.options, **self.files}.items()]
        return f"{self.kind}({', '.join(said)})"

    def without(self, name: str) -> Draw:
        """The same with one thing less."""
        parts = {"options": self.options, "files": self.files}
        kept = {
            part: {other: value for other, value in values.items() if other != name} for part, values in parts.items()
        }
        return replace(self, **kept)


@dataclass(frozen=True)
class Case:
    """A draw on disk.

    Args:
        reference: the package's model, as it was saved.
        size: height and width in pixels that it was made for.
        channels: of its images.
        prepares: whether the folder says how pictures are prepared.
    """

    reference: ReferenceModel
    size: tuple[int, int]
    channels: int = 3
    prepares: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of a draw.

    Args:
        kind: ``"exact"``, ``"refused"``, ``"impossible"`` for the package itself, or one of :data:`FAILED`.
        text: why, or what differs.
    """

    kind: str
    text: str = ""

    @property
    def reason(self) -> str:
        """The text without what is particular to a draw."""
        return re.sub(r"\d[\d.,×e-]*", "N", re.sub(r"'[^']*'", "'…'", self.text))[:150]


Maker = Callable[[Draw, Path], Case]


@dataclass(frozen=True)
class Drawn:
    """One package's random configurations.

    Args:
        strategy: gives draws, most of which vitviz should open.
        make: builds a draw with random weights and saves it as the package does.
        least_exact: the share of those that the package can build which must be exact.
    """

    strategy: st.SearchStrategy[Draw]
    make: Maker
    least_exact: float


@contextmanager
def silent() -> Iterator[None]:
    """What packages say is not vitviz's."""
    with restored_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def attempt(draw: Draw, make: Maker) -> Outcome:
    """Write a configuration, open it, and hold it to the package's own model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.default_generator.manual_seed(0)
        try:
            with silent(), torch.random.fork_rng(devices=[]), torch.inference_mode():
                case = make(draw, folder)
                pixels = torch.randn(2, case.channels, *case.size)
                expected = answer_of(case.reference, pixels)
        # Not everything that can be drawn is a model.
        except Exception as error:
            return Outcome("impossible", f"{type(error).__name__}: {error}")
        try:
            reading = read_any(folder, report=lambda _: None)
            found = list(differences(reading, case, pixels, expected))
        except VitvizError as error:
            message = str(error)
            sentence = "\n" not in message and len(message) > 20 and "Traceback" not in message
            return Outcome("refused" if sentence else "no sentence", message.removeprefix(f"{folder.name}: "))
        except Exception as error:
            return Outcome("no sentence", f"{type(error).__name__}: {error}")
    wrong = [each.text for each in found if not each.exact]
    return Outcome("wrong numbers", "; ".join(wrong)) if wrong else Outcome("exact")


def differences(reading: Reading, case: Case, pixels: torch.Tensor, expected: Answer) -> Iterator[Comparison]:
    """Of everything that both compute."""
    network, config = reading.model.network, reading.model.network.config
    with torch.inference_mode():
        seen = whole_patches(pixels, config)
        output, weights = answer_of_vitviz(network, seen)
    theirs = expected_output(expected, network, seen)
    assert theirs.std() > 1e-3 or theirs.shape[-1] == 1, "an output without variation proves nothing"
    yield compare("output", output, theirs)
    if output.ndim == 2:
        yield compare("output without weights", network(seen), theirs)
    if expected.attention:
        # Attention that pools all tokens is a layer, which the package does not show.
        pools = type(getattr(case.reference.module, "attn_pool", None)).__name__ == "AttentionPoolPrr"
        assert len(weights) == len(expected.attention) + pools
    for layer, (own, other) in enumerate(zip(weights, expected.attention, strict=False)):
        yield compare(f"attention of layer {layer}", own, other)
    if not case.prepares:
        return
    with Image.open(PHOTO) as photo:
        picture = photo.convert("RGB").resize(ASPECTS[sum(case.size) % len(ASPECTS)])
    with silent():
        theirs = case.reference.preprocess(picture)
    ours = reading.model.preprocessing.prepare(picture, config.patch_height, config.patch_width).pixels
    yield compare("pixels", ours, whole_patches(theirs, config))


@dataclass(eq=False)
class Tally:
    """The outcomes of many draws."""

    outcomes: list[tuple[Draw, Outcome]] = field(default_factory=list)

    def of(self, *kinds: str) -> list[tuple[Draw, Outcome]]:
        return [(draw, outcome) for draw, outcome in self.outcomes if outcome.kind in kinds]

    @property
    def share_exact(self) -> float:
        """Of those that the package can build."""
        return len(self.of("exact")) / max(1, len(self.outcomes) - len(self.of("impossible")))

    def summary(self) -> str:
        """How many of what, with the reasons of those that were refused."""
        counts = collections.Counter(outcome.kind for _, outcome in self.outcomes)
        lines = [f"{len(self.outcomes)} drawn: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common())]
        for kind in ("refused", "impossible"):
            reasons = collections.Counter(outcome.reason for _, outcome in self.of(kind))
            lines += [f"  {kind} {count}× {reason}" for reason, count in reasons.most_common(40)]
        return "\n".join(lines)

    def failures(self, make: Maker, most: int = 20) -> list[str]:
        """What is wrong, by the simplest configuration that shows it."""
        found: dict[str, list[str]] = {}
        for draw, outcome in self.of(*FAILED):
            if len(found) == most:
                break
            simple, outcome = simplest(draw, outcome, make)
            found.setdefault(str(simple), []).append(outcome.text)
        return [f"{config} → {texts[0]}" + f" (×{len(texts)})" * (len(texts) > 1) for config, texts in found.items()]


def simplest(draw: Draw, outcome: Outcome, make: Maker) -> tuple[Draw, Outcome]:
    """The configuration without everything that it still fails without."""
    for name in (*draw.files, *draw.options):
        simpler = draw.without(name)
        found = attempt(simpler, make)
        if found.kind == outcome.kind:
            draw, outcome = simpler, found
    return draw, outcome


def draw_many(drawn: Drawn, count: int, seed: int) -> Tally:
    """Up to ``count`` different configurations, the same ones for the same seed."""
    tally, seen = Tally(), set()

    def once(draw: Draw) -> None:
        # Hypothesis likes to repeat itself.
        hypothesis.assume(str(draw) not in seen)
        seen.add(str(draw))
        tally.outcomes.append((draw, attempt(draw, drawn.make)))

    check_drawn(drawn.strategy, count, once, seed)
    return tally


def optional(**options: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these options."""
    return st.fixed_dictionaries({}, optional=options)


def at_times(strategy: st.SearchStrategy[dict[str, Any]], one_in: int) -> st.SearchStrategy[dict[str, Any]]:
    """The strategy's value one time in ``one_in``, otherwise nothing."""
    return st.integers(1, one_in).flatmap(lambda number: strategy if number == one_in else st.just({}))


def few(options: dict[str, st.SearchStrategy[Any]], most: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """One of these options, or a few."""
    names = st.lists(st.sampled_from(sorted(options)), min_size=1, max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: options[name] for name in chosen}))


def together(*parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """One set of options of several; later ones count."""
    return st.tuples(*parts).map(lambda found: {name: value for part in found for name, value in part.items()})
