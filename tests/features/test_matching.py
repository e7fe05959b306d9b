"""Likeness is the cosine; matches are each other's best; clusters are found again."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.features.test_components import noise, pair_of
from tests.support.makers import MakeModel
from tests.support.modules import OwnViT, load_own
from tests.support.probes import near, with_outliers
from vitviz import Analysis, ConfigError, MethodError, QueryError, analyze, clusters, matches
from vitviz.features.colour_maps import group_colours


def cosine(one: list[float], other: list[float]) -> float:
    def length(vector: list[float]) -> float:
        return math.sqrt(sum(value * value for value in vector))

    return sum(a * b for a, b in zip(one, other, strict=True)) / length(one) / length(other)


def watched_pair() -> list[Analysis]:
    model = load_own(OwnViT("MultiheadAttention"))
    return [analyze(noise(seed), model) for seed in range(2)]


@pytest.mark.parametrize("of", ["tokens", "keys"])
@pytest.mark.parametrize("query", [(1, 2), "cls", 3])
@pytest.mark.parametrize("engine", ["own", "watched"])
def test_similarity_is_the_cosine_with_each_patch(make_model: MakeModel, engine: str, query: Any, of: Any) -> None:
    first, second = pair_of(make_model) if engine == "own" else watched_pair()
    mine, theirs = (each.features(1, of).tokens.tolist() for each in (first, second))
    token = mine[first.trace.layout.index(query)]
    for other, vectors in ((None, mine), (second, theirs)):
        heatmap = first.similarity(query, other=other, layer=1, of=of)
        near(heatmap.values.flatten(), [cosine(token, each) for each in vectors[1:]])
        assert heatmap.token_map.prefix["cls"] == pytest.approx(cosine(token, vectors[0]), abs=1e-4)
        assert heatmap.image is (first if other is None else second).prepared.image
        assert heatmap.shape == (first if other is None else second).trace.layout.grid(torch.zeros(len(vectors))).shape
    assert heatmap.description.startswith("Likeness to ") and "of another picture, by the " in heatmap.description


def test_similarity_to_all_patches_is_to_their_mean(make_model: MakeModel) -> None:
    [analysis, _] = pair_of(make_model)
    unit = analysis.features(0).unit[1:]
    expected = torch.nn.functional.cosine_similarity(unit, unit.mean(0, keepdim=True))
    near(analysis.similarity("patches", layer=0).values.flatten(), expected.numpy())


def test_similarity_refuses_what_there_is_not(make_model: MakeModel) -> None:
    [first, _] = pair_of(make_model)
    with pytest.raises(QueryError, match=r"patch \(9, 9\): this model has"):
        first.similarity((9, 9))
    with pytest.raises(ConfigError, match="found; expected analyses"):
        first.similarity((0, 0), other="cat.jpg", layer=0)


@pytest.mark.parametrize("engine", ["own", "watched"])
def test_matches_are_each_others_best(make_model: MakeModel, engine: str) -> None:
    first, second = pair_of(make_model) if engine == "own" else watched_pair()
    mine, theirs = (each.features(1).tokens[1:].tolist() for each in (first, second))
    table = [[cosine(one, other) for other in theirs] for one in mine]
    best = [max(range(len(theirs)), key=row.__getitem__) for row in table]
    back = [max(range(len(mine)), key=lambda one: table[one][other]) for other in range(len(theirs))]
    layouts = first.trace.layout, second.trace.layout
    for mutual in (True, False):
        found = matches(first, second, mutual, layer=1)
        expected = {(one, best[one]) for one in range(len(mine)) if not mutual or back[best[one]] == one}
        numbers = [
            tuple(layout.index(cell) - 1 for layout, cell in zip(layouts, each.patches, strict=True)) for each in found
        ]
        assert len(numbers) == len(expected) and set(numbers) == expected
        near(torch.tensor([each.score for each in found]), [table[one][other] for one, other in numbers])
        assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    for each in found:
        boxes = [
            analysis.prepared.geometry.patch_rectangle(*cell, layout.grid_height, layout.grid_width)
            for analysis, layout, cell in zip((first, second), layouts, each.patches, strict=True)
        ]
        assert list(each.boxes) == boxes


def test_a_picture_matches_itself_and_outliers_match_nothing(make_model: MakeModel) -> None:
    [analysis, _] = pair_of(make_model)
    pairs = matches(analysis, analysis, layer=0)
    assert len(pairs) == 24 and all(each.patches[0] == each.patches[1] for each in pairs)
    assert all(each.score == pytest.approx(1, abs=1e-6) and each.score <= 1 for each in pairs)
    outlying = with_outliers(analysis)
    cells = {analysis.trace.layout.cell(token) for token in (4, 9)}
    assert len(matches(outlying, analysis, layer=0)) == 22
    assert not cells & {each.patches[0] for each in matches(outlying, analysis, mutual=False, layer=0)}
    assert not cells & {each.patches[1] for each in matches(analysis, outlying, mutual=False, layer=0)}


def planted(make_model: MakeModel) -> tuple[list[Analysis], list[torch.Tensor]]:
    """Analyses whose keys in layer 0 lie near three directions, and the number of each patch's direction."""
    analyses, groups = pair_of(make_model), []
    random = np.random.default_rng(0)
    directions = torch.from_numpy(np.linalg.qr(random.normal(size=(32, 3)))[0].T).float()
    for number, analysis in enumerate(analyses):
        labels = torch.from_numpy(random.choice(3, analysis.trace.layout.token_count, p=[0.1, 0.6, 0.3]))
        vectors = directions[labels] + torch.from_numpy(random.normal(0, 0.03, (len(labels), 32))).float()
        keys = analysis.trace.keys.clone()
        # Lengths do not matter.
        lengths = torch.from_numpy(random.uniform(0.5, 20, (len(labels), 1))).float()
        keys[0] = (vectors * lengths).unflatten(-1, (4, 8)).transpose(0, 1)
        analyses[number] = replace(analysis, trace=replace(analysis.trace, keys=keys))
        groups.append(labels[1:])
    return analyses, groups


def test_planted_groups_are_found_the_largest_first(make_model: MakeModel) -> None:
    analyses, groups = planted(make_model)
    maps = clusters(analyses, 3, layer=0, of="keys")
    found = torch.cat([each.values.flatten() for each in maps]).long()
    labels = torch.cat(groups)
    order = labels.bincount().argsort(descending=True).tolist()
    assert found.tolist() == [order.index(label) for label in labels.tolist()]
    assert [each.image for each in maps] == [each.prepared.image for each in analyses]
    again = clusters(analyses, 3, layer=0, of="keys")
    assert all(torch.equal(one.values, other.values) for one, other in zip(maps, again, strict=True))
    assert clusters(analyses[0], 3, layer=0, of="keys", seed=7)[0].values.unique().numel() == 3
    # Smoothed, a border would have the colour of a third group.
    assert len(np.unique(np.asarray(maps[0].overlay()).reshape(-1, 3), axis=0)) == 3
    assert len(np.unique(group_colours(12), axis=0)) == 12


def test_as_many_groups_as_patches_and_no_more(make_model: MakeModel) -> None:
    [analysis, _] = pair_of(make_model)
    [each] = clusters(analysis, 24, layer=1)
    assert sorted(each.values.flatten().tolist()) == list(range(24))
    for k, expected in ((25, "at most 24, the number of patches"), (0, "a whole number")):
        with pytest.raises(MethodError, match=f"k = {k}: expected {expected}"):
            clusters(analysis, k, layer=1)


def test_alike_patches_are_one_group(make_model: MakeModel) -> None:
    analyses, _ = planted(make_model)
    keys = torch.ones_like(analyses[0].trace.keys)
    alike = replace(analyses[0], trace=replace(analyses[0].trace, keys=keys))
    [heatmap] = clusters(alike, 3, layer=0, of="keys")
    assert heatmap.values.unique().numel() == 1
