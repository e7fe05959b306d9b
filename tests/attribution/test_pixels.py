"""Maps by pixels equal those of Captum, and satisfy their definitions."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from captum.attr import IntegratedGradients
from einops import rearrange

from tests.support.makers import MakeNetwork
from tests.support.networks import NETWORKS
from vitviz import METHODS, TokenMap
from vitviz.attribution import AttributionInput, integrated_gradients, occlusion
from vitviz.errors.kinds import ConfigError, ImageError, MethodError
from vitviz.models.targets import Target, class_target
from vitviz.progress import Progress

KINDS = ("CLS", "five prefix tokens", "no CLS", "attention pooling", "oblong patch")


@pytest.fixture(params=[NETWORKS[kind] for kind in KINDS], ids=KINDS)
def subject(request: pytest.FixtureRequest, make_network: MakeNetwork) -> AttributionInput:
    return AttributionInput(make_network(**request.param), torch.randn(1, 3, 16, 24), class_target(1, 5))


def by_patch(pixels: torch.Tensor, subject: AttributionInput) -> torch.Tensor:
    """``"channel height width"`` to ``"row column pixel"``."""
    config = subject.network.config
    return rearrange(
        pixels,
        "channel (row height) (column width) -> row column (channel height width)",
        height=config.patch_height,
        width=config.patch_width,
    )


@pytest.mark.slow
def test_integrated_gradients_are_those_of_captum(subject: AttributionInput) -> None:
    network = subject.network
    direct = IntegratedGradients(lambda pixels: network(pixels)[:, 1]).attribute(subject.pixels.clone(), n_steps=20)
    expected = by_patch(direct[0].float(), subject).sum(-1)
    found = integrated_gradients(subject, 20).values
    torch.testing.assert_close(found, expected.relu(), atol=1e-5, rtol=1e-4)
    # The patches sum to the difference between image and blank, up to the error of the integral's steps.
    ends = network(torch.cat([subject.pixels, torch.zeros_like(subject.pixels)]))[:, 1]
    fine = IntegratedGradients(lambda pixels: network(pixels)[:, 1]).attribute(subject.pixels.clone(), n_steps=300)
    assert float(fine.sum()) == pytest.approx(float(ends[0] - ends[1]), abs=0.05)


def test_occlusion_is_the_fall_of_the_score_without_each_patch(subject: AttributionInput) -> None:
    network, found = subject.network, occlusion(subject).values
    rows, columns = found.shape
    score = network(subject.pixels)[0, 1]
    height, width = network.config.patch_height, network.config.patch_width
    for row in range(rows):
        for column in range(columns):
            without = subject.pixels.clone()
            without[..., row * height : (row + 1) * height, column * width : (column + 1) * width] = 0
            expected = (score - network(without)[0, 1]).relu()
            assert float(found[row, column]) == pytest.approx(float(expected), abs=1e-4)
    assert float(found.max()) > 1e-3


def test_progress_is_reported_after_every_batch_and_changes_nothing(make_network: MakeNetwork) -> None:
    subject = AttributionInput(make_network(), torch.randn(1, 3, 16, 24), class_target(1, 5))
    reports: list[Progress] = []
    found = integrated_gradients(subject, 20, report=reports.append)
    assert reports == [Progress(16, 20), Progress(20, 20)]
    assert torch.equal(found.values, integrated_gradients(subject, 20).values)
    reports.clear()
    found = occlusion(subject, report=reports.append)
    # One run is of the whole image, the others lack one of the 24 patches.
    assert reports == [Progress(1, 25), Progress(17, 25), Progress(25, 25)]
    assert torch.equal(found.values, occlusion(subject).values)


def test_a_score_that_does_not_depend_on_the_image_has_maps_of_zeros(make_network: MakeNetwork) -> None:
    nothing = Target("nothing", lambda logits: 0 * logits.sum())
    subject = AttributionInput(make_network(), torch.randn(1, 3, 16, 24), nothing)
    for found in (integrated_gradients(subject, 4), occlusion(subject)):
        assert not found.values.any()
        assert found.description.endswith(". Every patch is 0: by this method, nothing raises this score")


@pytest.mark.parametrize("method", [partial(integrated_gradients, steps=4), occlusion], ids=["gradients", "occlusion"])
def test_negative_values_are_kept_or_left_out_as_the_caption_says(
    make_network: MakeNetwork, method: Callable[..., TokenMap]
) -> None:
    subject = AttributionInput(make_network(), torch.randn(1, 3, 16, 24), class_target(1, 5))
    positive, signed = method(subject), method(subject, signed=True)
    assert signed.values.min() < 0 < signed.values.max()
    assert torch.equal(positive.values, signed.values.relu())
    assert (positive.signed, signed.signed, signed.domain) == (False, True, (-math.inf, math.inf))
    assert positive.description.endswith("; negative values are left out")
    assert signed.description.endswith("; negative values lower the score")
    with pytest.raises(MethodError, match=r"^signed = 'no': expected True or False$"):
        method(subject, signed="no")


def test_where_every_patch_lowers_the_score_nothing_raises_it(make_network: MakeNetwork) -> None:
    network, pixels = make_network(), torch.randn(1, 3, 16, 24)
    whole = network(pixels)[0].detach()
    subject = AttributionInput(network, pixels, Target("change", lambda logits: (logits - whole).abs().sum()))
    found = occlusion(subject, signed=True)
    assert (found.values < 0).all()
    assert found.description.endswith("; negative values lower the score. By this method, nothing raises this score")


def test_steps_that_are_none_and_several_images_are_refused(subject: AttributionInput) -> None:
    with pytest.raises(MethodError, match=r"^steps = 0: expected a whole number of at least 1$"):
        integrated_gradients(subject, 0)
    with pytest.raises(ImageError, match=r"^2 images: expected one, '1 channel height width'$"):
        occlusion(AttributionInput(subject.network, torch.cat([subject.pixels] * 2), subject.target))


@pytest.mark.parametrize("name", ["integrated_gradients", "occlusion"])
def test_without_captum_the_error_says_how_to_install_it(
    make_network: MakeNetwork, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    network = make_network()
    for module in [each for each in sys.modules if each.partition(".")[0] == "captum"]:
        monkeypatch.delitem(sys.modules, module)
    plain = importlib.util.find_spec
    hidden = lambda name, *rest: None if name == "captum" else plain(name, *rest)  # noqa: E731
    monkeypatch.setattr("vitviz.attribution.methods.find_spec", hidden)
    expected = "this needs captum: pip install 'captum>=0.9'"
    assert METHODS[name].refusal(network.config) == expected
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(ConfigError, match=f"^{expected}$"):
        METHODS[name].compute(AttributionInput(network, torch.randn(1, 3, 16, 24), class_target(1, 5)))
