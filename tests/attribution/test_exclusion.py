"""Maps without some tokens equal slow sums over masked and renormalised attention, and captions name the tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.attention import masked, random_attention, slow_rollout
from tests.support.comparison import closeness
from tests.support.example import ASSETS
from tests.support.refusals import check_refusals
from tests.support.traces import trace_of, weights_of
from vitviz import AttentionTrace, Model, TokenLayout, VisionTransformer, analyze
from vitviz.attention import softmax
from vitviz.attribution import attention, rollout, rollout_matrix
from vitviz.errors.kinds import MethodError, QueryError, VitvizError

close = closeness(tolerance=1e-12)
LAYOUT = TokenLayout(("cls",), 3, 3)


def random_trace() -> AttentionTrace:
    return trace_of(random_attention(LAYOUT), LAYOUT)


@pytest.mark.parametrize("chunk", [1, 10**9])
@pytest.mark.parametrize("keep_bytes", [0, 10**6])
def test_a_trace_without_tokens_has_their_weights_at_zero_in_every_form(
    monkeypatch: pytest.MonkeyPatch, chunk: int, keep_bytes: int
) -> None:
    monkeypatch.setattr(softmax, "CHUNK_BYTES", chunk)
    plain = replace(random_trace(), keep_bytes=keep_bytes)
    bias = torch.randn(4, 1, 10, 10, dtype=torch.float64)
    for trace in (plain, replace(plain, bias=bias)):
        # Cached results of the whole trace must not be reused for the reduced one.
        trace.log_sums(1), trace.cached_fused("max")
        expected = torch.from_numpy(masked(weights_of(trace).numpy(), [0, 4]))
        reduced = trace.without([0, 4])
        close(reduced.rows((2, 2)), expected[:, :, 9])
        close(reduced.columns("cls"), torch.zeros(4, 3, 10, dtype=torch.float64))
        close(reduced.columns((1, 2)), expected[..., 6])
        for layer in range(4):
            close(reduced.weights(layer), expected[layer])
            close(reduced.fused(layer, "min"), expected[layer].amin(0))
            close(reduced.fused(layer, "max"), expected[layer].amax(0))
            start = torch.rand(1, 10, dtype=torch.float64)
            close(reduced.propagate_layer(layer, start), start @ expected[layer].mean(0))
        assert reduced.keep_bytes == 0 and reduced.queries is trace.queries
        close(trace.weights(1), weights_of(trace)[1])


def test_excluding_nearly_all_of_a_row_keeps_it_exact() -> None:
    """The rest of a row is renormalised from its scores, as subtracting from 1 would lose digits."""
    layout = TokenLayout(("cls",), 2, 2)
    scores = torch.randn(2, 1, 5, 5)
    expected = scores[..., [0, 1, 3, 4]].double().softmax(-1)
    scores[..., 2] = 60
    trace = AttentionTrace(scores, torch.eye(5).expand(2, 1, 5, 5), 1.0, layout)
    for layer in range(2):
        found = trace.without([2]).weights(layer)
        close(found[..., [0, 1, 3, 4]].double(), expected[layer], 1e-6)
        assert not found[..., 2].any()


def test_the_attention_of_a_pooling_query_is_renormalised(make_network: Callable[..., VisionTransformer]) -> None:
    network = make_network(cls_token=False, pooling="attention")
    with torch.no_grad():
        trace = network.encode(torch.randn(1, 3, 16, 24)).traces[0]
    assert trace.pooled is not None
    pooled = trace.pooled.double().clone()
    pooled[:, 3] = 0
    pooled /= pooled.sum(-1, keepdim=True)
    matrix = slow_rollout(masked(weights_of(trace).numpy(), [3]), "mean", 0)
    found = rollout(trace, exclude=[3])
    close(found.values.double(), trace.layout.grid(pooled.mean(0) @ torch.from_numpy(matrix)), 1e-5)
    with pytest.raises(MethodError, match=r"^the pooling query attends to the tokens alone that are left out"):
        replace(trace, pooled=torch.eye(24)[None, 3]).without([3])


def norms_with(layout: TokenLayout, *outliers: int) -> torch.Tensor:
    norms = torch.ones(5, layout.token_count)
    norms[:, list(outliers)] = 9
    return norms


CAPTION = "Attention rollout for the CLS token: mean of 3 heads, residual 0.5, layers 0 to 3"


@pytest.mark.parametrize(
    ("outliers", "message"),
    [
        ([], "without outlier patches, of which there are none"),
        ([4], "without 1 outlier patch: (1, 0)"),
        ([4, 6], "without 2 outlier patches: (1, 0), (1, 2)"),
        ([1, 2, 4, 6], "without 4 outlier patches: (0, 0), (0, 1), (1, 0), (1, 2)"),
    ],
)
def test_outliers_are_left_out_and_the_caption_names_them(outliers: list[int], message: str) -> None:
    # A prefix token with a large norm is no outlier.
    trace = replace(random_trace(), norms=norms_with(LAYOUT, 0, *outliers))
    found = rollout(trace, exclude="outliers")
    assert found.description == f"{CAPTION}, {message}"
    close(found.values, rollout(trace, exclude=outliers or None).values)
    place = "Attention from the CLS token to each patch, layer 1 of 0–3, head 2"
    assert attention(trace, 1, 2, exclude="outliers").description == f"{place}, {message}"


def test_sinks_are_left_out_and_the_caption_names_them() -> None:
    layout = TokenLayout(("cls",), 5, 5)
    weights = torch.rand(4, 3, 26, 26, dtype=torch.float64)
    weights[0, ..., [7, 11]] = 30
    trace = trace_of(weights / weights.sum(-1, keepdim=True), layout)
    found = rollout(trace, exclude="sinks")
    assert found.description == f"{CAPTION}, without 2 sink patches: (1, 1), (2, 0)"
    close(found.values, rollout(trace, exclude=[7, 11]).values)
    assert found.range[1] < rollout(trace).range[1] / 3


EXPECTED = "expected 'outliers' or 'sinks', or a list of tokens such as \\[\\(0, 3\\), 'cls'\\]"


@pytest.mark.parametrize(
    ("exclude", "error", "message"),
    [
        ("outlier", MethodError, f"exclude = 'outlier': {EXPECTED}; did you mean 'outliers'\\?"),
        ("cls", MethodError, f"exclude = 'cls': {EXPECTED}"),
        (3, MethodError, f"exclude = 3: {EXPECTED}"),
        ((1, 0), MethodError, rf"exclude = \(1, 0\): {EXPECTED}"),
        ([], MethodError, "exclude = an empty list: expected at least one token, or None for no exclusion"),
        ([(3, 0)], QueryError, r"patch \(3, 0\): this model has prefix tokens 'cls', .*"),
        (["cls", "patches"], QueryError, "token 'patches': .*"),
        (range(1, 10), MethodError, r"exclude = .*: all 9 patches left out; none would show"),
        ("outliers", MethodError, "norms: this trace has no token norms; vitviz.analyze measures them"),
    ],
)
@pytest.mark.parametrize("method", [attention, rollout, rollout_matrix])
def test_tokens_that_cannot_be_excluded_are_refused(
    method: Any, exclude: Any, error: type[VitvizError], message: str
) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        method(random_trace(), exclude=exclude)


def test_neither_a_reference_implementation_nor_a_trace_of_nothing_excludes_tokens() -> None:
    trace = random_trace()
    calls = {
        "exclude = 'sinks': vit-explain leaves no token out; expected None$": lambda: rollout(
            trace, reference="vit-explain", exclude="sinks"
        ),
        "all 10 tokens left out: expected at least one that is attended to$": lambda: trace.without(range(10)),
    }
    check_refusals(MethodError, calls)


def test_an_analysis_leaves_tokens_out(bundled: Model) -> None:
    analysis = analyze(ASSETS / "chelsea.jpg", bundled)
    plain = analysis.rollout()
    strongest = plain.token_map.strongest
    found = analysis.rollout(exclude=[strongest])
    assert found.values[strongest] == 0 < plain.values[strongest]
    assert analysis.map("rollout", exclude=[strongest]).description == found.description
    assert analysis.attention(exclude=[strongest]).values[strongest] == 0
    # The registers take what would otherwise make outliers (Darcet et al. 2024).
    assert analysis.rollout(exclude="outliers").description.endswith("without outlier patches, of which there are none")
