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
from tests.parity.table import HEADER, PAGE, SECTION, by_row, kinds, opened, package
from tests.support.device import Pass, on_device
from vitviz import Model
from vitviz.errors.kinds import ConfigError
from vitviz.ui.explorer.device_file import device_refusal
from vitviz.weights.families import FAMILIES
from vitviz.weights.own_network import as_own
from vitviz.weights.read import Reading

pytestmark = pytest.mark.parity

TOLERANCE = 1e-5
OWN = {case.family: case for case in reversed(CASES) if not case.is_watched}
WATCHED = {case.row: case for case in reversed(CASES) if case.is_watched}
# Of these rows, the first case pools nothing, or is of another kind than any of vitviz's own networks.
WATCHED_ALONE = (
    *("transformers ViTMAE (encoder)", "transformers ViTMSN", "transformers I-JEPA", "transformers SigLIP 2 (NaFlex)"),
    *("transformers GIT", "transformers FLAVA, image tower", "OpenCLIP visual tower"),
)


@cache
def compared(case: Case) -> tuple[Reading, Difference]:
    with TemporaryDirectory() as folder:
        return compare(case, Path(folder))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}: {case.name}")
def test_output_and_attention_are_those_of_the_package(case: Case, capfd: pytest.CaptureFixture[str]) -> None:
    reading, difference = compared(case)
    assert difference.output < TOLERANCE
    assert difference.attention < TOLERANCE
    titles = {family.name: family.title for family in FAMILIES}
    found = reading.checks[0].fact, reading.checks[0].value
    if case.is_watched:
        assert found[0] == "opened by" and f" of {case.family.removeprefix('watched by ')} " in found[1]
    else:
        assert found == ("family", titles[case.family])
    assert capfd.readouterr() == ("", "")
    # Else the table's "trained" would be empty words.
    config = reading.model.network.config
    assert (config.image_height, config.image_width) == case.sizes[0]


@pytest.mark.parametrize("case", OWN.values(), ids=OWN)
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


@pytest.mark.parametrize("case", [*OWN.values(), *WATCHED.values()], ids=[*OWN, *WATCHED])
def test_the_page_has_the_same_numbers(case: Case) -> None:
    model = compared(case)[0].model
    if case.row in WATCHED_ALONE:
        with pytest.raises(ConfigError, match="is a network that vitviz's own is not, so that no page can run it: "):
            as_own(model)
        return
    model = as_own(model)
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
    assert OWN.keys() == {family.name for family in FAMILIES} and WATCHED.keys() > set(WATCHED_ALONE)
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

    expected = [
        [row, opened(cases), without_version(package(cases[0])), kinds(cases)] for row, cases in by_row(CASES).items()
    ]
    assert [[*row[:2], without_version(row[2]), row[3]] for row in page_rows()] == expected


def test_every_number_in_the_table_is_within_the_tolerance() -> None:
    numbers = [number for row in page_rows() for number in row[4:]]
    assert len(numbers) == 2 * len(by_row(CASES))
    assert all(re.fullmatch(r"\d\.\de[+-]\d\d", number) and float(number) <= TOLERANCE for number in numbers)
