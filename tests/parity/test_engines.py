"""Modules in memory that are watched, beside vitviz's own network with the same weights."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.parity import CASES
from tests.parity.both_ways import TOLERANCE, both_ways
from tests.parity.case import Case, Reference, randomised
from tests.parity.random_draws import silent
from tests.reference_packages import transformers
from tests.support.long_runs import SEED
from tests.support.reading import read_any
from vitviz import ConfigError, Model, VitvizError, load
from vitviz.weights.own_network import REFUSED, as_own

pytestmark = pytest.mark.parity


def one_of_some_rows() -> list[Case]:
    """Drawn by the seed."""
    rows: dict[str, list[Case]] = defaultdict(list)
    for case in CASES:
        rows[case.row].append(case)
    chance = random.Random(SEED)
    drawn = {chance.choice(rows[row]) for row in chance.sample(sorted(rows), len(rows) // 6)}
    return [case for case in CASES if case in drawn]


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(one_of_some_rows(), id=f"some of the rows, seed {SEED}"),
        pytest.param(CASES, id="all", marks=pytest.mark.long),
    ],
)
def test_both_engines_have_the_same_maps_on_the_rows_of_the_table(cases: Sequence[Case], tmp_path: Path) -> None:
    rows = set[str]()
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        torch.manual_seed(0)
        with silent():
            reference = case.make(folder)
            model = read_any(reference.path, report=lambda _: None, **case.overrides).model
            shutil.rmtree(folder)
            try:
                watched, own = (model, as_own(model)) if case.is_watched else (in_memory(reference, case, model), model)
            except ConfigError as error:
                assert REFUSED in str(error)
                continue
            if watched is not None:
                rows.add(case.row)
                both_ways(watched, own, torch.randn(1, case.channels, *case.sizes[0]))
    assert len(rows) > 3


def in_memory(reference: Reference, case: Case, own: Model) -> Model | None:
    """The package's own module, watched as somebody has it who knows what its checkpoint says; None without one."""
    config = own.network.config
    if reference.module is None:
        return None
    options: dict[str, Any] = {"image_size": case.sizes[0], "prefix": config.prefix, "normalisation": "half"}
    return load(reference.module, labels=[str(number) for number in range(config.classes)], engine="module", **options)


def mae(**settings: Any) -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    return randomised(transformers.ViTMAEModel(transformers.ViTMAEConfig(**sizes, image_size=48, **settings)))


def test_mae_opens_with_all_its_patches_in_order() -> None:
    with silent():
        module = mae(mask_ratio=0.0)
        pixels = torch.randn(1, 3, 48, 64)
        trace = load(module, normalisation="half").network.encode(pixels).traces[0]
        module.set_attn_implementation("eager")
        noise = {"noise": torch.arange(12.0)[None], "interpolate_pos_encoding": True}
        expected = module(pixel_values=pixels, output_attentions=True, **noise).attentions
    assert trace.layers == len(expected) == 2
    for layer, weights in enumerate(expected):
        assert float((trace.weights(layer) - weights[0]).abs().max()) <= TOLERANCE


def test_mae_that_leaves_patches_out_says_how_it_opens() -> None:
    with silent():
        module = mae()
        with pytest.raises(VitvizError, match=r"leaves out .*: set module\.config\.mask_ratio = 0\.0 and load"):
            load(module, normalisation="half")
        module.config.mask_ratio = 0.0
        assert load(module, normalisation="half").network.config.depth == 2
