"""What the explorer's page gets of a trace: tensors from which every weight follows within the stated error."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

import vitviz
from tests.support.example import EXAMPLE
from tests.support.map_contents import metadata_of
from vitviz import METHODS, Analysis, AttentionTrace, Model, QueryError, VisionTransformer
from vitviz.ui.explorer.assets import FOLDER
from vitviz.ui.explorer.saved_page import whole_page
from vitviz.ui.packs import MAX_ROLLOUT_TOKENS, features_packs, file_names, map_file, pack

# Of a product of two factors, each rounded to eleven bits.
ROUNDING = 2**-10 + 2**-22
# Half the step between the smallest numbers of float16.
SMALLEST = 2**-25


@pytest.fixture
def make_trace(make_network: Callable[..., VisionTransformer]) -> Callable[..., AttentionTrace]:
    def make(**changes: object) -> AttentionTrace:
        return make_network(**changes).encode(torch.randn(1, 3, 16, 24)).traces[0]

    return make


def scores_of(file: dict[str, torch.Tensor]) -> torch.Tensor:
    """As the page computes them: ``"head query key"``."""
    scores = file["queries"].double() @ file["keys"].double().mT
    return scores + file["bias"].double() if "bias" in file else scores


def weights_of(file: dict[str, torch.Tensor]) -> torch.Tensor:
    return (scores_of(file) - file["log_sums"].double()[..., None]).exp()


def most_wrong(trace: AttentionTrace, layer: int) -> torch.Tensor:
    """How far a score may be off, by the format: ``"head query key"``."""
    queries, keys = trace.queries[layer].double().abs() * trace.scale, trace.keys[layer].double()
    keys = (keys - keys.mean(1, keepdim=True)).abs()
    steps = SMALLEST * (queries.sum(-1)[..., None] + keys.sum(-1)[:, None])
    return ROUNDING * (queries @ keys.mT) + steps


def allowed(trace: AttentionTrace, layer: int) -> torch.Tensor:
    """How far a weight may be off: ``"head query key"``."""
    return trace.weights(layer).double() * (most_wrong(trace, layer).exp() - 1) + 1e-6


def expected_map(
    trace: AttentionTrace, layer: int, head: int | str, token: int, way: str
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of a token of a head or of fused heads, and how far a page may be off: ``"token"``."""
    is_fused, wrong = isinstance(head, str), allowed(trace, layer).numpy()
    weights = trace.fused(layer, head).numpy() if is_fused else trace.weights(layer).numpy()[head]
    wrong = wrong.max(0) if is_fused else wrong[head]
    return (weights[token], wrong[token]) if way == "row" else (weights[:, token], wrong[:, token])


@pytest.mark.parametrize("changes", [{}, {"register_tokens": 4}, {"cls_token": False, "pooling": "mean"}, {"heads": 1}])
def test_every_weight_follows_within_the_stated_error(
    make_trace: Callable[..., AttentionTrace], changes: dict[str, object]
) -> None:
    trace = make_trace(**changes)
    for layer in range(trace.layers):
        found, expected = weights_of(load(pack(trace, f"layer {layer}"))), trace.weights(layer).double()
        assert ((found - expected).abs() <= allowed(trace, layer)).all()
        # And nobody would see it.
        assert (found - expected).abs().max() < 0.01 * expected.max()


def test_a_bias_a_part_of_all_keys_and_large_values_cost_no_precision(
    make_trace: Callable[..., AttentionTrace],
) -> None:
    trace = make_trace()
    layout, tokens = trace.layout, trace.layout.token_count
    bias = torch.randn(1, trace.heads, tokens, tokens)
    for changed in (
        AttentionTrace(trace.queries, trace.keys, trace.scale, layout, bias=bias),
        AttentionTrace(trace.queries, trace.keys + 100, trace.scale, layout),
        # Beyond half precision.
        AttentionTrace(trace.queries * 1e6, trace.keys / 1e6, trace.scale, layout),
    ):
        file = load(pack(changed, "layer 1"))
        assert ("bias" in file) == (changed.bias is not None) and file["keys"].dtype == torch.float16
        assert (file["queries"].dtype == torch.float32) == (float(changed.queries.abs().max()) > 1e4)
        torch.testing.assert_close(weights_of(file), changed.weights(1).double(), atol=5e-3, rtol=0)


def test_the_rollout_of_every_token_is_that_of_the_library(example: Analysis) -> None:
    rows = load(pack(example.trace, "rollout"))["rows"].float() / example.trace.layout.token_count
    for query in ("cls", (0, 0), (7, 3)):
        found = rows[example.trace.layout.index(query)]
        torch.testing.assert_close(
            example.trace.layout.grid(found), example.rollout(query=query).values, atol=1e-5, rtol=1e-3
        )
    torch.testing.assert_close(rows.sum(-1), torch.ones(len(rows)), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["layer 8", "layer -1", "layer", "layer 1 ", "../layer 1", "rollout.x", "", "layer ١"])
def test_there_are_no_other_files(example: Analysis, name: str) -> None:
    with pytest.raises(QueryError):
        pack(example.trace, name)


def test_of_many_tokens_there_is_no_rollout(make_trace: Callable[..., AttentionTrace]) -> None:
    trace = make_trace()
    count = MAX_ROLLOUT_TOKENS + 1
    queries = torch.zeros(1, 1, count, 2)
    many = AttentionTrace(queries, queries, 1.0, replace(trace.layout, prefix=(), grid_height=1, grid_width=count))
    assert file_names(many) == ["layer 0"]
    with pytest.raises(QueryError, match="rollout"):
        pack(many, "rollout")


def test_a_map_goes_with_what_it_says_of_itself(example: Analysis) -> None:
    layout = example.trace.layout
    for name in ("relevance", "grad_cam"):
        token_map = example.map(name).token_map
        content = map_file(example, METHODS[name], {}, token_map)
        values = load(content)["values"]
        torch.testing.assert_close(layout.grid(values), token_map.values.float())
        expected = [token_map.prefix.get(prefix, math.nan) for prefix in layout.prefix]
        assert values[: layout.prefix_count].tolist() == pytest.approx(expected, nan_ok=True)
        assert metadata_of(content) == {"description": token_map.description, "quantity": token_map.quantity}


# One file without a server.


def start_of(page: str) -> dict[str, Any]:
    """What a page begins with."""
    block = re.search(r'<script type="application/json" id="start">(.*?)</script>', page)
    assert block is not None
    found: dict[str, Any] = json.loads(block[1])
    return found


def test_the_whole_page_holds_every_file_and_asks_nobody(example: Analysis) -> None:
    hostile = 'A "cat" </title></script><script>alert(1)</script><!--'
    model = replace(example.model, name=hostile, labels=(hostile, *example.model.labels[1:]), card={hostile: hostile})
    page = whole_page(replace(example, model=model), hostile, name=hostile)
    assert "<script>alert" not in page and start_of(page)["models"][""]["labels"][0] == hostile
    assert set(re.findall(r"https?://[\w.]+", page)) == {"http://www.w3.org"}
    files = start_of(page)["files"]
    assert list(files) == file_names(example.trace)
    assert base64.b64decode(files["layer 3"]) == pack(example.trace, "layer 3")
    # The page's types name all that it begins with.
    declared = (FOLDER / "types.d.ts").read_text().partition("interface Start {")[2].partition("\n}")[0]
    assert start_of(page).keys() <= {*re.findall(r"^  (\w+)\??:", declared, re.MULTILINE)}
    # Every place in the template is filled.
    assert not re.search(r"@(title|head|body|heading|template|start|script)@", page)


def test_the_whole_page_knows_how_its_picture_was_seen(bundled: Model) -> None:
    photo = EXAMPLE.with_name("rocket.jpg")
    analysis = vitviz.analyze(photo, bundled, "crop", resolution=48)
    named = whole_page(analysis, source="hf:a/b", name="rocket.jpg", fit="crop", resolution=48)
    for page, chosen, shown in (
        (named, ("crop", 48), ("crop", 48)),
        (whole_page(vitviz.analyze(photo, bundled)), (None, None), ("squash", 112)),
    ):
        start = start_of(page)
        view, facts = start["state"]["views"][0], start["views"][0]
        assert ((view["fit"], view["resolution"]), (facts["fit"], facts["resolution"])) == (chosen, shown)
    start, [model] = start_of(named), start_of(named)["models"].values()
    assert (model["title"], start["views"][0]["name"]) == ("hf:a/b", "rocket.jpg")


def test_the_whole_page_of_a_base_model_is_under_twelve_megabytes(make_model: Callable[..., Model]) -> None:
    """Twelve layers and heads of 64 features, at 197 tokens: one layer tells the size of all."""
    shape = {"image_height": 56, "image_width": 56, "width": 768, "heads": 12, "head_width": 64, "mlp_width": 8}
    analysis = vitviz.analyze(torch.zeros(56, 56, 3, dtype=torch.uint8).numpy(), make_model(depth=1, **shape))
    assert analysis.trace.layout.token_count == 197
    layer, page = len(pack(analysis.trace, "layer 0")) * 4 / 3, len(whole_page(analysis))
    assert page + 11 * layer < 12e6


def test_features_are_those_of_the_library_at_length_one(analysis: Analysis) -> None:
    """One pass writes all layers; the file without a number is that of the layer that the library chooses."""
    last = analysis.trace.layers - 1
    files = dict(features_packs(analysis, "features 2"))
    assert list(files) == [f"features {layer}" for layer in range(last + 1)]
    prefix = analysis.trace.layout.prefix_count
    for layer in (0, last):
        expected = analysis.features(layer).unit[prefix:]
        found = load(files[f"features {layer}"])["vectors"]
        assert found.dtype == torch.float16 and found.shape == expected.shape
        torch.testing.assert_close(found.float(), expected, atol=2**-12, rtol=2**-11)
    [(name, content)] = features_packs(analysis, "features")
    best = analysis.features().layer
    assert (name, metadata_of(content)["layer"]) == ("features", str(best))
    torch.testing.assert_close(load(content), load(files[f"features {best}"]))
    for wrong in (f"features {last + 1}", "features 01", "features -1", "features1"):
        with pytest.raises(
            QueryError, match=re.escape(f"'{wrong}': this picture has 'features 0' to 'features {last}'")
        ):
            list(features_packs(analysis, wrong))
