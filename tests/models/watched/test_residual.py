"""The tokens between the layers of a watched module: norms, logit lens and LeGrad by the plain formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from PIL import Image

import vitviz
from tests.support.comparison import closeness
from tests.support.modules import CLASSES, WAYS, WIDTH, Layer, OwnViT, load_own, maps_of
from tests.support.refusals import check_refusals
from vitviz.errors.kinds import MethodError, VitvizError
from vitviz.evaluation.probes.lens import logit_lens
from vitviz.evaluation.probes.norms import massive_activations
from vitviz.evaluation.probes.table import probe as run_probe
from vitviz.models.targets import class_target
from vitviz.models.watched import ModuleConfig

pytestmark = pytest.mark.slow

close = closeness(tolerance=1e-5, any_type=True)
TARGET = 2


class InPlace(OwnViT):
    """Changes its tokens in place after each residual addition."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            tokens = tokens + layer.projection(layer.attend(layer.norm(tokens)).transpose(1, 2).flatten(2))
            tokens += layer.mlp(layer.mlp_norm(tokens))
        return self.classifier(self.norm(tokens)[:, 0])


def steps_of(module: OwnViT, pixels: torch.Tensor) -> list[torch.Tensor]:
    """The tokens before the first layer and after each one."""
    steps = [module.tokens(pixels)]
    for layer in module.layers:
        steps.append(layer(steps[-1]))
    return steps


def ordered(tokens: torch.Tensor, registers: int) -> torch.Tensor:
    """``"… token width"`` with the registers behind the CLS token."""
    count = tokens.shape[-2]
    return tokens[..., [0, *range(count - registers, count), *range(1, count - registers)], :]


def analysed(module: OwnViT, registers: int = 0) -> Any:
    prefix = ["cls", *(f"register {number + 1}" for number in range(registers))]
    return vitviz.analyze(Image.linear_gradient("L").convert("RGB"), load_own(module, prefix=prefix))


class PostNorm(OwnViT):
    """Norms after the residual additions, as in the first transformers."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.forward = lambda tokens, layer=layer: post_norm(layer, tokens)  # type: ignore[union-attr, assignment]
        self.norm = torch.nn.Identity().eval()  # type: ignore[assignment]


def post_norm(layer: Layer, tokens: torch.Tensor) -> torch.Tensor:
    tokens = layer.norm(tokens + layer.projection(layer.attend(tokens).transpose(1, 2).flatten(2)))
    return layer.mlp_norm(tokens + layer.mlp(tokens))


MODULES = {
    **{way: (lambda way=way: OwnViT(way), 0) for way in WAYS},
    "registers behind": (lambda: OwnViT(registers=2), 2),
    "in place": (InPlace, 0),
    "norms behind": (PostNorm, 0),
}
every_module = pytest.mark.parametrize(("make", "registers"), MODULES.values(), ids=MODULES)


@every_module
def test_norms_and_lens_are_those_of_the_plain_formula(make: Any, registers: int) -> None:
    module = make()
    analysis = analysed(module, registers)
    pixels = analysis.prepared.pixels
    steps = steps_of(module, pixels)
    close(analysis.trace.norms, torch.stack([ordered(each[0], registers).norm(dim=-1) for each in steps]))
    close(list(analysis.model.network.stream(pixels))[1], ordered(steps[1], registers))
    expected = torch.cat([module.classifier(module.norm(each)[:, 0]) for each in steps]).softmax(-1)
    findings = logit_lens(analysis)
    close(findings.measurements["probability"].values, expected)
    assert set(findings.measurements) == {"probability"} and findings.rows[0][-1] == "–"
    largest = massive_activations(analysis).measurements["largest"].values
    close(largest, torch.stack([each[0].abs().amax(0) for each in steps]))


def slow_legrad(module: OwnViT, pixels: torch.Tensor, start_layer: int) -> torch.Tensor:
    """``"token"``: the mean of ``relu(∂s/∂A)`` with every layer's attention as a leaf of its own."""
    target, gradients = class_target(TARGET, CLASSES), []
    for number, (layer, tokens) in enumerate(zip(module.layers, steps_of(module, pixels), strict=False)):
        assert isinstance(layer, Layer)
        if number < start_layer:
            continue
        normed = layer.norm(tokens.detach())
        pairs, projection = maps_of(layer)
        queries, keys, values = (
            rearrange(F.linear(normed, *pair), "1 token (head dim) -> head token dim", head=4) for pair in pairs
        )
        weights = (queries @ keys.mT * layer.scale).softmax(-1).detach().requires_grad_()
        context = rearrange(weights @ values.detach(), "head token dim -> 1 token (head dim)")
        after = tokens.detach() + projection(context)
        after = after + layer.mlp(layer.mlp_norm(after))
        score = target.score(module.classifier(module.norm(after)[:, 0])[0])
        gradients.append(torch.autograd.grad(score, weights)[0].relu().mean((0, 1)))
    return torch.stack(gradients).mean(0)


@pytest.mark.parametrize("start_layer", [0, 2])
@pytest.mark.parametrize(("make", "registers"), [MODULES[name] for name in ("fused", "written out", WAYS[4])])
def test_legrad_is_that_of_the_plain_formula(make: Any, registers: int, start_layer: int) -> None:
    module = make()
    before = [parameter.requires_grad for parameter in module.parameters()]
    analysis = analysed(module, registers)
    found = analysis.map("legrad", target=TARGET, start_layer=start_layer).values.flatten()
    expected = slow_legrad(module, analysis.prepared.pixels, start_layer)[1 + registers :]
    assert float(expected.max()) > 0
    close(found / expected.max(), expected / expected.max())
    assert [parameter.requires_grad for parameter in module.parameters()] == before
    assert all(parameter.grad is None for parameter in module.parameters())


def test_grad_cam_is_of_the_tokens_that_an_adapter_and_the_map_beside_it_read() -> None:
    module, down, up = OwnViT(), torch.ones(WIDTH, 2), torch.zeros(2, WIDTH)
    expected = analysed(module).map("grad_cam", target=TARGET, layer=1).values
    for layer in module.layers:
        layer.value.register_forward_hook(lambda _, tokens, values: values + tokens[0] @ down @ up)  # type: ignore[union-attr]
    torch.testing.assert_close(analysed(module).map("grad_cam", target=TARGET, layer=1).values, expected)


def test_grad_cam_of_values_that_a_convolution_makes_is_refused() -> None:
    module = OwnViT()
    for layer in module.layers:
        weight = layer.value.weight[..., None]  # type: ignore[union-attr]
        layer.value.forward = lambda tokens, weight=weight: F.conv1d(tokens.mT, weight).mT  # type: ignore[union-attr]
    with pytest.raises(MethodError, match="no linear projection to queries, keys and values was found"):
        analysed(module).map("grad_cam", target=TARGET)


def test_a_module_that_overwrites_its_tokens_has_no_gradients() -> None:
    for method in ("legrad", "relevance"):
        with pytest.raises(MethodError, match="overwrites in place what its gradients need"):
            analysed(InPlace()).map(method, target=TARGET)


class NoResidual(OwnViT):
    """Layers of attention alone."""

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        tokens = self.tokens(pixels)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            tokens = layer.projection(layer.attend(layer.norm(tokens)).transpose(1, 2).flatten(2))
        return tokens


class ReadsMore(OwnViT):
    """Classifies the last tokens together with others."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(self.encode(pixels))[:, 0] + self.tokens(pixels).mean(1))


@pytest.mark.parametrize("kind", [ReadsMore, NoResidual])
def test_a_module_whose_tokens_cannot_be_read_says_so(kind: type[OwnViT]) -> None:
    analysis = analysed(kind())
    assert isinstance(analysis.model.network.config, ModuleConfig) and not analysis.model.network.config.has_stream
    assert analysis.trace.norms is None
    sentence = "the tokens between the module's layers cannot be read"
    probes = ("token_norms", "logit_lens", "massive_activations", "outlier_patches", "patch_components")
    calls: dict[str, Any] = {f"{name}: {sentence}": lambda name=name: run_probe(analysis, name) for name in probes}
    calls |= {f"legrad: {sentence}": lambda: analysis.map("legrad")}
    calls |= {f".*{sentence}": lambda: analysis.model.network.stream(analysis.prepared.pixels)}
    check_refusals(VitvizError, calls)
    assert analysis.rollout().values.shape == (4, 6)
