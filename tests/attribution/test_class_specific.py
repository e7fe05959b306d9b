"""Class-specific maps equal the reference implementations and plain autograd through materialised attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitviz
from tests.parity.grad_cam_cases import CLASSES, LAYERS, VARIANTS, make_model, make_pixels
from tests.parity.timm_cases import TOLD
from tests.support.comparison import closeness
from tests.support.makers import MakeNetwork
from tests.support.networks import NETWORKS
from tests.support.plain import sharp
from vitviz import TokenLayout, TokenMap
from vitviz.attribution import AttributionInput, grad_cam, gradient_rollout, legrad, relevance
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.models.gradients import GradientTrace, trace_gradients
from vitviz.models.targets import Target, class_index, class_target

pytestmark = pytest.mark.parity

close = closeness(tolerance=1e-10, any_type=True)


REFERENCE = np.load(Path(__file__).parents[1] / "data" / "attention_methods.npz")

# The reference implementations.


def reference_gradients() -> GradientTrace:
    """The reference case. Its values are the identity, so that gradients of output and attention agree."""
    attention, gradient = (torch.from_numpy(REFERENCE[name]) for name in ("attention", "gradient"))
    identity = torch.eye(17, dtype=torch.float64).expand_as(attention)
    tensors = (attention.log(), identity, identity, gradient)
    nothing = Target("nothing", lambda logits: logits[0])
    return GradientTrace(*map(tuple, tensors), (None,) * 4, 1.0, TokenLayout(("cls",), 4, 4), 0, nothing, 0.0)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.9])
def test_vit_explain_s_gradient_rollout_is_reproduced(ratio: float) -> None:
    found = gradient_rollout(reference_gradients(), ratio, reference="vit-explain")
    expected = REFERENCE[f"vit_explain_gradient_rollout_{ratio}"]
    np.testing.assert_allclose(found.values.numpy(), expected, atol=1e-5, rtol=0)
    paper = gradient_rollout(reference_gradients(), ratio).values
    assert (paper / paper.max() - found.values).abs().max() > 1e-3


def test_transmm_is_reproduced() -> None:
    trace, expected = reference_gradients(), REFERENCE["transmm_relevance"]
    for index in range(17):
        found = relevance(trace, query=index)
        tokens = [*found.prefix.values(), *found.values.flatten().tolist()]
        np.testing.assert_allclose(tokens, expected[index], atol=1e-5, rtol=0)


# Consequences of their definitions.

METHODS: dict[str, Callable[[AttributionInput], TokenMap]] = {
    "gradient rollout": lambda subject: gradient_rollout(subject.gradients, residual_weight=0.0),
    "relevance": lambda subject: relevance(subject.gradients),
    "LeGrad": legrad,
    "Grad-CAM": grad_cam,
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@every_method
def test_without_gradients_there_is_no_relevance(
    make_network: MakeNetwork, method: Callable[[AttributionInput], TokenMap]
) -> None:
    subject = replace(sharp(make_network, {}), target=Target("nothing", lambda logits: 0 * logits.sum()))
    found = method(subject)
    if method is METHODS["gradient rollout"]:
        # Without residual no token receives anything, and its rollout is the identity.
        assert found.prefix["cls"] == pytest.approx(1)
    assert not found.values.any()
    assert found.description.endswith(". Every patch is 0: by this method, nothing raises this score")


@pytest.mark.parametrize("method", [relevance, gradient_rollout])
def test_a_map_that_is_only_where_it_begins_is_reported(
    make_network: MakeNetwork, method: Callable[..., TokenMap]
) -> None:
    subject = sharp(make_network, {})
    found = replace(subject, target=Target("nothing", lambda logits: 0 * logits.sum())).gradients
    # The mean over all patches begins with equal shares of each.
    count = found.layout.patch_count
    sentence = f". Every patch is {1 / count:.3g}: by this method, nothing raises this score"
    assert method(found, query="patches", start_layer=1).description.endswith(sentence)
    own = method(found, query=(1, 2))
    assert own.values.count_nonzero() == 1
    assert own.description.endswith(". By this method, nothing raises this score")
    for query in ("cls", "patches", (1, 2)):
        assert "nothing raises" not in method(subject.gradients, query=query).description
    # With nothing but the residual, attention is not asked.
    assert "nothing raises" not in gradient_rollout(found, residual_weight=1).description


def test_gradients_from_a_layer_on_are_those_of_all_layers(make_network: MakeNetwork) -> None:
    subject = sharp(make_network, {})
    above = trace_gradients(subject.network, subject.pixels, 1, 1)
    assert [above.span(start) for start in (0, 1, -1, 2)] == [range(1, 3)] * 2 + [range(2, 3)] * 2
    pooled = sharp(make_network, NETWORKS["attention pooling"]).gradients
    for method in (gradient_rollout, relevance):
        assert torch.equal(method(above).values, method(subject.gradients, start_layer=1).values)
        with pytest.raises(QueryError, match="layer 3: this model has layers 0 to 2"):
            method(above, start_layer=3)
        with pytest.raises(QueryError, match="end_layer 0: below the start layer, 1; expected a layer from 1 to 2"):
            method(subject.gradients, start_layer=1, end_layer=0)
        with pytest.raises(MethodError, match=r"end_layer = 1: the pooling query, .* reads the last layer, 2"):
            method(pooled, end_layer=1)


def test_gradients_are_computed_once_of_one_number(make_network: MakeNetwork) -> None:
    subject = sharp(make_network, {"register_tokens": 1})
    assert subject.gradients is subject.gradients
    with pytest.raises(MethodError, match=r"own: its score is .*; expected one number in a tensor, such as logits"):
        Target("own", lambda logits: logits).scores(torch.zeros(1, 4))
    with pytest.raises(MethodError, match=r"reads 'patch': expected .*did you mean 'patches'"):
        Target("own", torch.sum, "patch")  # type: ignore[arg-type]


# Which class.

NAMES = (
    *("dog, domestic dog", "hot dog, dog", "tench, Tinca tinca", "crane", "crane", "maillot"),
    *("maillot, tank suit", "7", "cardigan", "Cardigan, Cardigan Welsh corgi"),
)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("dog", 0),
        ("hot dog", 1),
        ("Domestic Dog", 0),
        ("tinca tinca", 2),
        # Some of its synonyms, as a shorter list of labels has them.
        ("dog, domestic dog", 0),
        ("maillot", 5),
        ("Cardigan", 9),
        ("CARDIGAN", 8),
        ("tank suit", 6),
        ("crane (4)", 4),
        # A name comes before a number.
        ("7", 7),
        ("6", 6),
        (" 0 ", 0),
        (7, 7),
        # The most probable.
        (None, 3),
    ],
)
def test_a_class_is_found_by_any_of_its_names_before_its_number(text: int | str | None, index: int) -> None:
    assert class_index(text, torch.eye(len(NAMES))[3], NAMES) == index


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crane", "target 'crane': this model has 2 classes of this name, numbers 3, 4"),
        ("domesticdog", r"no such class; .* number to 9: .*; did you mean 'domestic dog'\?"),
        ("10", "target '10': this model has no such class"),
        ("-1", "target '-1': this model has no such class"),
        (3.0, "target 3.0: expected a label or a number to 9"),
        (True, "target True: expected a label or a number to 9"),
    ],
)
def test_what_no_class_is_called_is_refused(text: Any, message: str) -> None:
    with pytest.raises(MethodError, match=message):
        class_index(text, torch.zeros(len(NAMES)), NAMES)


@pytest.mark.parametrize(("index", "classes"), [(-1, 4), (4, 4), (0, 0), (None, 0)])
def test_a_class_that_the_model_lacks_is_refused(index: int | None, classes: int) -> None:
    expected = f"this model has classes 0 to {classes - 1}" if classes else "this model has no classifier"
    with pytest.raises(MethodError, match=f"target {index}: {expected}"):
        class_index(None, torch.zeros(0), ()) if index is None else class_target(index, classes)


@pytest.mark.parametrize("variant", VARIANTS)
def test_grad_cam_is_that_of_the_package(variant: str, tmp_path: Path) -> None:
    model, pixels = make_model(variant), make_pixels()
    torch.save(model.state_dict(), tmp_path / "model.pth")
    overrides = {**TOLD, "image_size": (32, 48), **({"pooling": "mean"} if variant == "mean" else {})}
    network = vitviz.load(tmp_path / "model.pth", **overrides).network
    torch.testing.assert_close(network(pixels), model(pixels).detach(), atol=1e-4, rtol=1e-4)
    positive = 0
    with np.load(Path(__file__).parents[1] / "data" / "grad_cam.npz") as stored:
        for layer in range(LAYERS):
            for index in range(CLASSES):
                found = grad_cam(AttributionInput(network, pixels, class_target(index, CLASSES)), layer)
                expected = torch.from_numpy(stored[f"{variant}/{layer}/{index}"])
                torch.testing.assert_close(found.values, expected, atol=1e-6, rtol=1e-3)
                positive += bool(expected.any())
    # A map is zero if no token supports the class; most are not.
    assert positive > LAYERS * CLASSES / 2
