"""Every family against the package that its checkpoints are from: the same numbers, at every size it takes."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.parity import CASES
from tests.parity.case import Case, Difference, compare
from tests.parity.table import HEADER, PAGE, SECTION, by_row, kinds, package
from tests.support.device import Pass, on_device
from vitviz import Model
from vitviz.ui.explorer.device_file import device_refusal
from vitviz.weights.families import FAMILIES
from vitviz.weights.read import Reading

pytestmark = pytest.mark.parity

TOLERANCE = 1e-5
FIRST = {case.family: case for case in reversed(CASES)}
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}: {case.name}")
every_family = pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)


@cache
def compared(case: Case) -> tuple[Reading, Difference]:
    with TemporaryDirectory() as folder:
        return compare(case, Path(folder))


@every_case
def test_output_and_attention_are_those_of_the_package(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    reading, difference = compared(case)
    assert difference.output < TOLERANCE
    assert difference.attention < TOLERANCE
    titles = {family.name: family.title for family in FAMILIES}
    assert (reading.checks[0].fact, reading.checks[0].value) == ("family", titles[case.family])
    assert capfd.readouterr() == ("", "")
    # Else the table's "trained" would be empty words.
    config = reading.model.network.config
    assert (config.image_height, config.image_width) == case.sizes[0]


@every_family
def test_asking_for_the_weights_changes_no_bit_and_traces_give_the_same_ones(case: Case) -> None:
    reading, _ = compared(case)
    network = reading.model.network
    for size in case.sizes:
        pixels = torch.randn(2, case.channels, *size)
        logits, weights = network(pixels, need_weights=True)
        assert torch.equal(network(pixels), logits)
        encoding = network.encode(pixels)
        assert torch.equal(encoding.logits, logits)
        for image, trace in enumerate(encoding.traces):
            for layer, found in enumerate(weights):
                torch.testing.assert_close(trace.weights(layer), found[image], rtol=0, atol=1e-6)


@every_family
def test_the_page_has_the_same_numbers(case: Case) -> None:
    model = compared(case)[0].model
    pixels = torch.randn(1, case.channels, *model.preprocessing.whole_patches(*patch_of(model)))
    encoding = model.network.encode(pixels)
    reason = device_refusal(model)
    assert reason is None or reason.startswith("takes pictures of any shape")
    # The fit is not that of the network.
    squashed = replace(model, preprocessing=replace(model.preprocessing, fit="squash"))
    found = on_device(squashed, [Pass(pixels)])[0]
    for name, value in (
        ("logits", encoding.logits),
        ("queries", encoding.traces[0].queries),
        ("keys", encoding.traces[0].keys),
    ):
        assert (found[name] - value.flatten()).abs().max() < 10 * TOLERANCE, name


def patch_of(model: Model) -> tuple[int, int]:
    config = model.own_network("").config
    return config.patch_height, config.patch_width


def test_every_family_has_a_case() -> None:
    assert {case.family for case in CASES} == {family.name for family in FAMILIES}
    assert len({(case.row, case.name) for case in CASES}) == len(CASES)


# The table in docs/checked.md.


def page_rows() -> list[list[str]]:
    table = SECTION.search(PAGE.read_text())
    assert table is not None
    lines = table[0].splitlines()
    assert tuple(lines[:2]) == HEADER
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_the_table_has_exactly_the_rows_of_the_cases() -> None:
    # Versions and numbers differ between machines.
    def without_version(text: str) -> str:
        return re.sub(r" \d[\d.]*$", "", text)

    expected = [[row, without_version(package(cases[0])), kinds(cases)] for row, cases in by_row(CASES).items()]
    assert [[row[0], without_version(row[1]), row[2]] for row in page_rows()] == expected


def test_every_number_in_the_table_is_within_the_tolerance() -> None:
    numbers = [number for row in page_rows() for number in row[3:]]
    assert len(numbers) == 2 * len(by_row(CASES))
    assert all(re.fullmatch(r"\d\.\de-\d\d", number) and float(number) <= TOLERANCE for number in numbers)
