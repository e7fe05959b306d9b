"""Random configurations of the packages themselves are opened with their numbers, or refused in a sentence.

``make test-long`` draws 5,000; ``VITVIZ_TEST_PART=0.1`` draws a tenth, ``VITVIZ_TEST_SEED=7`` others.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.parity.random_configurations import DRAWN
from tests.parity.random_draws import Case, Draw, Drawn, Tally, attempt, draw_many, simplest
from tests.parity.random_timm import OTHERS
from tests.support.long_runs import SEED, share_of

pytestmark = pytest.mark.parity

FEW = {"timm": 12, "transformers": 12, "open_clip": 8}
MANY = {"timm": 2200, "transformers": 2000, "open_clip": 800}
MOST_IMPOSSIBLE = 0.2


def check(package: str, count: int) -> None:
    drawn = DRAWN[package]
    tally = draw_many(drawn, count, SEED)
    print(f"{package}, seed {SEED}, {tally.summary()}")
    failures = tally.failures(drawn.make)
    assert not failures, f"{package}, VITVIZ_TEST_SEED={SEED}:\n" + "\n".join(failures)
    assert len(tally.outcomes) == count
    assert len(tally.of("impossible")) <= MOST_IMPOSSIBLE * count, tally.summary()
    # Who refuses everything is never wrong.
    assert tally.share_exact >= drawn.least_exact, tally.summary()


@pytest.mark.parametrize("package", FEW)
def test_random_configurations(package: str) -> None:
    check(package, FEW[package])


@pytest.mark.long
@pytest.mark.parametrize("package", MANY)
def test_very_many_random_configurations(package: str) -> None:
    check(package, share_of(MANY[package]))


@pytest.mark.long
def test_every_architecture_of_timm_that_is_like_a_vision_transformer() -> None:
    tally = Tally([(draw, attempt(draw, timm.make)) for draw in map(Draw, OTHERS)])
    print(f"timm, every architecture, {tally.summary()}")
    assert not tally.failures(timm.make)
    assert len(tally.of("exact")) > 50


# That the harness sees what it is there for.


EXACT = Draw("vit_tiny_patch16_224", {"num_heads": 2, "depth": 1})
timm = DRAWN["timm"]


def altered(draw: Draw, folder: Path) -> Case:
    """A package that computes something else than it has saved."""
    case = timm.make(draw, folder)
    case.reference.module.norm.bias += draw.options.get("init_values", 0)
    return case


def test_other_numbers_are_seen_and_the_configuration_is_simplified() -> None:
    draw = replace(EXACT, options={**EXACT.options, "init_values": 0.1}, files={"crop_pct": 0.9})
    outcome = attempt(draw, altered)
    assert outcome.kind == "wrong numbers"
    assert re.match(r"output differs by 0\.\d+ \(allowed 1e-05\)", outcome.text)
    assert simplest(draw, outcome, altered)[0] == Draw(draw.kind, {"init_values": 0.1})


def test_two_tokens_without_classifiers_have_the_mean_that_timm_returns() -> None:
    assert attempt(Draw("deit_tiny_distilled_patch16_224", {"num_classes": 0}), timm.make).kind == "exact"


def test_the_same_seed_draws_the_same_and_another_seed_others() -> None:
    def drawn(seed: int) -> list[Draw]:
        strategy = st.builds(Draw, st.text("abc", min_size=3))

        def refuse(draw: Draw, folder: Path) -> Case:
            raise ValueError

        return [draw for draw, _ in draw_many(Drawn(strategy, refuse, 0), 20, seed).outcomes]

    assert drawn(1) == drawn(1) != drawn(2)
