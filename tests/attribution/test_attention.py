"""Maps of raw attention are parts of the attention matrices, and the table of methods says what the functions take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.attention import LAYOUTS, masked
from tests.support.traces import weights_of
from vitviz import METHODS, AttentionTrace, TokenLayout, TokenMap, VisionTransformer
from vitviz.attention.layout import Query
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution import AttributionInput, attention, attention_sheet, rollout
from vitviz.attribution.methods import Method
from vitviz.attribution.parameters import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, Switch, Token
from vitviz.errors.kinds import ConfigError, QueryError
from vitviz.models.targets import class_target

every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
both_directions = pytest.mark.parametrize("direction", ["row", "column"])
FUSIONS: dict[str, Callable[..., torch.Tensor]] = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


def random_trace(layout: TokenLayout) -> AttentionTrace:
    queries, keys = torch.randn(2, 3, 4, layout.token_count, 5, dtype=torch.float64)
    return AttentionTrace(queries, keys, 1.0, layout)


def matches(token_map: TokenMap, tokens: torch.Tensor, layout: TokenLayout) -> bool:
    """Whether a map holds these values, ``"token"``: every patch at its place, every prefix token by its name."""
    grid = tokens[layout.prefix_count :].reshape(layout.grid_height, layout.grid_width)
    torch.testing.assert_close(token_map.values, grid, atol=1e-12, rtol=0)
    prefix = dict(zip(layout.prefix, tokens[: layout.prefix_count].tolist(), strict=True))
    return list(token_map.prefix) == list(prefix) and token_map.prefix == pytest.approx(prefix, abs=1e-12)


def queries_of(layout: TokenLayout) -> list[tuple[Query, slice]]:
    """Queries, and the slices of tokens that they select."""
    first, count = layout.prefix_count, layout.token_count
    named: list[tuple[Query, slice]] = [(name, slice(token, token + 1)) for token, name in enumerate(layout.prefix)]
    corner = (layout.grid_height - 1, layout.grid_width - 1)
    return [*named, ((0, 1), slice(first + 1, first + 2)), (corner, slice(count - 1, count)), (2, slice(2, 3))]


@every_layout
@both_directions
@pytest.mark.parametrize("excludes", [False, True])
def test_a_map_is_a_row_or_a_column_of_its_matrix(layout: TokenLayout, direction: str, excludes: bool) -> None:
    trace, exclude = random_trace(layout), [layout.token_count - 1] if excludes else None
    weights = torch.from_numpy(masked(weights_of(trace).numpy(), exclude or []))
    for query, tokens in [*queries_of(layout), ("patches", slice(layout.prefix_count, None))]:
        values = weights[:, :, tokens].mean(2) if direction == "row" else weights[..., tokens].mean(-1)
        for head in (0, 3, -1, *FUSIONS):
            expected = FUSIONS[head](values, 1) if isinstance(head, str) else values[:, head]
            for layer in (0, 1, -1, -3):
                found = attention(trace, layer, head, query, direction, exclude=exclude)
                assert matches(found, expected[layer], layout)


@every_layout
@both_directions
@pytest.mark.parametrize("query", [None, "patches", (1, 0)])
def test_every_cell_of_the_sheet_is_the_attention_of_its_layer_and_head(
    layout: TokenLayout, direction: str, query: Query | None
) -> None:
    trace = random_trace(layout)
    cells = attention_sheet(trace, query, direction)
    assert [len(row) for row in cells] == [4, 4, 4]
    for layer, row in enumerate(cells):
        for head, cell in enumerate(row):
            single = attention(trace, layer, head, query, direction)
            assert torch.equal(cell.values, single.values)
            assert cell.prefix == single.prefix
            assert cell.description == single.description
    part = attention_sheet(trace, query, direction, layers=[-1, 0], heads=(2,))
    assert [[cell.description for cell in row] for row in part] == [
        [cells[2][2].description],
        [cells[0][2].description],
    ]
    assert torch.equal(part[0][0].values, cells[2][2].values)


@pytest.mark.parametrize(
    ("parameters", "description"),
    [
        ({}, "Attention from the CLS token to each patch, layer 2 of 0–2, mean of 4 heads"),
        ({"layer": 0, "head": 0}, "Attention from the CLS token to each patch, layer 0 of 0–2, head 0"),
        ({"layer": -2, "head": -1}, "Attention from the CLS token to each patch, layer 1 of 0–2, head 3"),
        (
            {"head": "max", "query": "register 2"},
            "Attention from register 2 to each patch, layer 2 of 0–2, max of 4 heads",
        ),
        ({"head": 1, "query": "patches"}, "Attention from the mean patch to each patch, layer 2 of 0–2, head 1"),
        (
            {"query": (1, 2), "direction": "column", "head": "min"},
            "Attention each patch pays to patch (1, 2), layer 2 of 0–2, min of 4 heads",
        ),
        (
            {"query": 0, "direction": "column"},
            "Attention each patch pays to the CLS token, layer 2 of 0–2, mean of 4 heads",
        ),
    ],
)
def test_the_description_counts_layers_and_heads_from_1_and_names_token_and_direction(
    parameters: dict[str, Any], description: str
) -> None:
    assert attention(random_trace(LAYOUTS["five prefix tokens"]), **parameters).description == description


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"layers": 3}, "layers = 3: expected at least one number in a list, such as [0, -1]"),
        ({"heads": []}, "heads = []: expected at least one number in a list, such as [0, -1]"),
        ({"layers": [0, 3]}, "layer 3: this model has layers 0 to 2 (or -3 to -1 from the end)"),
        ({"heads": ["mean"]}, "head 'mean': expected a whole number; this model has heads 0 to 3 (or -4 to -1"),
    ],
)
def test_a_sheet_of_what_are_no_layers_or_heads_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(QueryError, match=f"^{re.escape(message)}"):
        attention_sheet(random_trace(LAYOUTS["CLS"]), **parameters)


# Token maps.


def test_a_map_knows_its_range_and_its_strongest_patch() -> None:
    token_map = TokenMap(torch.tensor([[0.25, 0.125, 0.5], [0.75, 0.0, 0.25]]), {}, "weight", "a map")
    assert (token_map.range, token_map.domain) == ((0.0, 0.75), (0.0, 1.0))
    assert token_map.strongest == (1, 0)


def test_a_map_without_differences_says_so_once() -> None:
    flat = TokenMap(torch.full((2, 3), 0.25), {}, "weight", "a map")
    assert flat.description == "a map. Every patch is 0.25"
    # Frames of a video are made again from their values and descriptions.
    assert replace(flat).description == flat.description
    assert TokenMap(torch.tensor([[0.25, 0.5]]), {}, "weight", "a map").description == "a map"
    assert TokenMap(torch.tensor([[0.25]]), {}, "weight", "a map").description == "a map"


def test_a_map_of_a_network_that_still_learns_has_a_range(make_network: Callable[..., VisionTransformer]) -> None:
    network = make_network().requires_grad_(True)
    trace = network.encode(torch.randn(1, 3, 16, 24)).traces[0]
    for token_map in (attention(trace), rollout(trace), rollout(trace, reference="vit-explain")):
        assert token_map.range == (token_map.values.detach().min(), token_map.values.detach().max())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.zeros(4), r"token map of shape \(4,\): expected 'grid_height grid_width'"),
        (torch.zeros(1, 2, 2), r"token map of shape \(1, 2, 2\): expected 'grid_height grid_width'"),
        (torch.tensor([[0.0, torch.nan]]), "a map: the values are not all finite"),
        (torch.tensor([[torch.inf, 0.0]]), "a map: the values are not all finite"),
    ],
)
def test_a_map_that_is_no_finite_grid_is_refused(values: torch.Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}$"):
        TokenMap(values, {}, "weight", "a map")


# The table of methods.

PARAMETERS = [(method.name, parameter) for method in METHODS.values() for parameter in method.parameters]
every_parameter = pytest.mark.parametrize(
    ("method", "parameter"), PARAMETERS, ids=[f"{method}-{parameter.name}" for method, parameter in PARAMETERS]
)


def legal_values(parameter: Parameter, trace: AttentionTrace) -> list[Any]:
    """Every legal value of a parameter; for a range, its ends."""
    match parameter.kind:
        case Choice():
            return [value for _, value in parameter.kind.options]
        case Number():
            return [parameter.kind.minimum, parameter.kind.maximum]
        case LayerNumber():
            return list(range(-trace.layers, trace.layers))
        case HeadNumber():
            return [*HEAD_FUSIONS, *range(-trace.heads, trace.heads)]
        case Token():
            return [None, *trace.layout.prefix, "patches", (0, 0)]
        case Switch():
            return [False, True]
        case ClassTarget():
            return []


def input_of(method: Method, layout: TokenLayout, make_network: Callable[..., VisionTransformer]) -> Any:
    """The input of a method for a model with this layout."""
    if not method.class_specific:
        trace = random_trace(layout)
        pooled = torch.rand(trace.heads, layout.token_count, dtype=trace.dtype).softmax(-1)
        return trace if method.pooling is None else replace(trace, pooled=pooled)
    cls, distillation = "cls" in layout.prefix, "distillation" in layout.prefix
    network = make_network(
        image_height=4 * layout.grid_height,
        image_width=4 * layout.grid_width,
        cls_token=cls,
        distillation_token=distillation,
        register_tokens=layout.prefix_count - cls - distillation,
        pooling="cls" if cls else "mean",
    )
    subject = AttributionInput(
        network, torch.randn(1, 3, 4 * layout.grid_height, 4 * layout.grid_width), class_target(1, 5)
    )
    return subject if method.requires == "inputs" else subject.gradients


@pytest.mark.parametrize("name", METHODS)
def test_a_record_lists_the_arguments_of_its_function_with_their_defaults(name: str) -> None:
    method = METHODS[name]
    evidence, *arguments = inspect.signature(method.compute).parameters.values()
    assert evidence.name == method.requires
    defaults = {
        parameter.name: parameter.default
        for parameter in method.parameters
        if not isinstance(parameter.kind, ClassTarget)
    }
    # A callback is no parameter of the map.
    positional = [argument for argument in arguments if argument.kind is not argument.KEYWORD_ONLY]
    assert defaults == {argument.name: argument.default for argument in positional}
    assert len(defaults) == len(method.parameters) - method.class_specific


@every_parameter
def test_a_parameter_has_a_title_a_help_and_a_legal_default(method: str, parameter: Parameter) -> None:
    assert parameter.title and parameter.help
    # Several methods have it: its help speaks of none that this one is not.
    names = {"rollout", "flow", "mass", "relevance", "legrad"} - {*re.findall(r"\w+", METHODS[method].title.lower())}
    assert not names & {*re.findall(r"\w+", parameter.help.lower())}
    match parameter.kind:
        case Choice():
            values = [value for _, value in parameter.kind.options]
            assert parameter.default in values
            assert len(set(values)) == len(values)
            assert len({title for title, _ in parameter.kind.options}) == len(values)
        case Number():
            assert parameter.kind.minimum <= parameter.default <= parameter.kind.maximum
            steps = (parameter.default - parameter.kind.minimum) / parameter.kind.step
            assert steps == pytest.approx(round(steps))
        case LayerNumber():
            assert parameter.default in (0, -1), "every model has a first and a last layer"
        case HeadNumber():
            assert parameter.default in HEAD_FUSIONS
        case Switch():
            assert parameter.default is False, "the command has a word for True"
        case Token() | ClassTarget():
            assert parameter.default is None


@pytest.mark.parametrize(
    ("method", "layout"), [(name, [*LAYOUTS][number % len(LAYOUTS)]) for number, name in enumerate(METHODS)]
)
def test_every_value_that_a_record_says_is_legal_gives_a_map(
    make_network: Callable[..., VisionTransformer], method: str, layout: str
) -> None:
    tokens = LAYOUTS[layout]
    evidence = input_of(METHODS[method], tokens, make_network)
    if isinstance(evidence, AttentionTrace):
        norms = {"value_norms": torch.ones(evidence.layers, evidence.heads, tokens.token_count)}
        evidence = replace(evidence, norms=torch.ones(evidence.layers + 1, tokens.token_count), **norms)
    for parameter in METHODS[method].parameters:
        for value in legal_values(parameter, random_trace(tokens)):
            if value == "vit-explain" and "cls" not in tokens.prefix:
                continue
            token_map = METHODS[method].compute(evidence, **{parameter.name: value})
            assert token_map.values.shape == (tokens.grid_height, tokens.grid_width)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_a_model_cannot_serve_says_why(make_network: Callable[..., VisionTransformer], name: str) -> None:
    method = METHODS[name]
    pooling = {} if method.pooling is None else {"pooling": method.pooling[0]}
    assert method.refusal(make_network(**pooling).config) is None
    refusal = method.refusal(make_network(**pooling, classes=0).config)
    assert (refusal is not None and "no classifier" in refusal) == method.class_specific
    if method.pooling is not None:
        assert method.refusal(make_network().config) == method.pooling[1]
