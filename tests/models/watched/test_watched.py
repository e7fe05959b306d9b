"""A module's attention is watched exactly, however it is computed, and the module is not changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitviz
from tests.support.comparison import closeness
from tests.support.modules import (
    DEPTH,
    HEADS,
    SIZE,
    WAYS,
    MeanViT,
    OwnViT,
    explicit_weights,
    load_own,
    maps_of,
    picture,
    state_of,
)
from vitviz import QueryError, VitvizError
from vitviz.models.watched.replay import Replay

pytestmark = pytest.mark.slow

close = closeness(tolerance=1e-5, any_type=True)
VARIANTS: dict[str, dict[str, Any]] = {
    "fused": {},
    **{way: {"way": way} for way in WAYS[1:]},
    **{f"{way}, bias": {"way": way, "has_bias": True} for way in WAYS[:4]},
    "a scale for each layer": {"scales": (0.1, 0.5, None)},
    "a scale for each layer, written out": {"way": "written out", "scales": (0.1, 0.5, None)},
    "grouped keys": {"groups": 2},
    "grouped keys by einsum": {"way": "einsum", "groups": 2},
    "one head of keys by einsum": {"way": "einsum", "groups": 1},
    "registers behind the patches": {"registers": 3},
    "registers behind, bias": {"registers": 2, "has_bias": True},
}
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


def prefix(variant: dict[str, Any]) -> list[str]:
    return ["cls", *(f"register {number + 1}" for number in range(variant.get("registers", 0)))]


def in_layout(weights: torch.Tensor, registers: int) -> torch.Tensor:
    """``"head query key"`` with the registers behind the CLS token."""
    count = weights.shape[-1]
    order = [0, *range(count - registers, count), *range(1, count - registers)]
    return weights[:, order][:, :, order]


@every_variant
def test_a_trace_has_the_weights_of_the_plain_formula(variant: dict[str, Any]) -> None:
    module, pixels = OwnViT(**variant), torch.randn(2, 3, *SIZE)
    model = load_own(module, prefix=prefix(variant))
    encoding = model.network.encode(pixels)
    logits, weights = model.network(pixels, need_weights=True)
    assert torch.equal(encoding.logits, torch.cat([module(image[None]) for image in pixels]))
    close(logits, module(pixels))
    assert torch.equal(logits, encoding.logits) and torch.equal(logits, model.network(pixels))
    for number, trace in enumerate(encoding.traces):
        assert (trace.layers, trace.heads) == (DEPTH, HEADS)
        for layer, expected in enumerate(explicit_weights(module, pixels[number : number + 1])):
            expected = in_layout(expected, variant.get("registers", 0))
            close(trace.weights(layer), expected)
            close(weights[layer][number], expected)
            close(trace.row(layer, "cls"), expected[:, 0])
            close(trace.row(layer, (1, 2)), expected[:, trace.layout.index((1, 2))])
            close(trace.column(layer, (3, 5)), expected[..., trace.layout.index((3, 5))])


class Encoder(OwnViT):
    """A network of torch's own encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, HEADS, 48, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList([nn.TransformerEncoder(layer, DEPTH, enable_nested_tensor=False)])
        self.eval()


def test_the_encoder_of_torch_is_watched_although_it_has_a_kernel_for_whole_layers() -> None:
    module, pixels = Encoder(), torch.randn(1, 3, *SIZE)
    trace = load_own(module).network.encode(pixels).traces[0]
    tokens = module.tokens(pixels)
    for number, layer in enumerate(module.layers[0].layers):
        normed = layer.norm1(tokens)
        _, expected = layer.self_attn(normed, normed, normed, average_attn_weights=False)
        close(trace.weights(number), expected[0])
        tokens = layer(tokens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("way", WAYS)
def test_modules_of_other_precisions_are_watched(way: str, dtype: torch.dtype) -> None:
    module = OwnViT(way).to(dtype)
    model = load_own(module)
    trace = model.network.encode(torch.randn(1, 3, *SIZE)).traces[0]
    assert model.network.precision == dtype
    assert next(module.parameters()).dtype == dtype
    close(trace.weights(0).sum(-1), torch.ones(HEADS, trace.layout.token_count))


def test_progress_is_reported_and_an_exception_ends_the_forward_pass() -> None:
    model, done = load_own(OwnViT()), []

    def stop(progress: Any) -> None:
        done.append(progress.done)
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.network.encode(torch.randn(1, 3, *SIZE), report=stop)
    assert done == [1, 2]
    assert len(model.network.encode(torch.randn(1, 3, *SIZE)).traces) == 1


@pytest.mark.parametrize(
    ("variant", "frozen"),
    [(variant, number % 2 == 0) for number, variant in enumerate(VARIANTS.values())],
    ids=VARIANTS,
)
def test_a_module_stays_as_it_was(variant: dict[str, Any], frozen: bool) -> None:
    module = OwnViT(**variant).requires_grad_(not frozen)
    module.register_forward_hook(lambda *_: None)
    before, weights = state_of(module), copy.deepcopy(module.state_dict())
    pixels = torch.randn(1, 3, *SIZE)
    expected, fast = module(pixels), torch.backends.mha.get_fastpath_enabled()
    model = load_own(module, prefix=prefix(variant))
    analysis = vitviz.analyze(picture(), model)
    analysis.rollout()
    analysis.map("relevance")
    analysis.map("grad_cam")
    analysis.switched_off([(0, 1)])
    assert state_of(module) == before
    assert torch.backends.mha.get_fastpath_enabled() == fast
    assert all(torch.equal(weights[name], tensor) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(module(pixels), expected)


def test_switching_off_what_a_module_reads_otherwise_is_refused() -> None:
    analysis = vitviz.analyze(picture(), load_own(MeanViT()))
    assert analysis.switched_off([(0, 0)]).shape == (5,)
    with pytest.raises(VitvizError, match=r"^MeanViT: hidden patches change its output by .*, so it also reads .*$"):
        analysis.switched_off(patches=[(0, 1)])


@pytest.mark.parametrize("way", WAYS)
def test_heads_and_patches_that_are_off_are_as_in_the_plain_formula(way: str) -> None:
    module, hidden = OwnViT(way, registers=1), [(0, 1), (2, 3)]
    model = load_own(module, prefix=["cls", "register 1"])
    analysis = vitviz.analyze(picture(), model)
    pixels = analysis.prepared.pixels
    # The tokens of these patches are removed.
    remaining = [token for token in range(26) if token not in [1 + 6 * row + column for row, column in hidden]]
    tokens = module.tokens(pixels)[:, remaining]
    for layer in module.layers:
        tokens = layer(tokens)
    close(analysis.switched_off(patches=hidden), module.read(tokens)[0])
    # A head is silent where its columns of the projection are zero.
    silent = copy.deepcopy(module)
    maps_of(silent.layers[1])[1].weight.data[:, 16:24] = 0
    close(analysis.switched_off([(1, 2)]), silent(pixels)[0])
    effects = analysis.head_effects(target=3)
    close(effects.without[1, 2], silent(pixels)[0].softmax(-1)[3].detach())
    assert effects.without.shape == (DEPTH, HEADS)
    with pytest.raises(QueryError, match="layer 3, head 0: this model has layers 0 to 2 and heads 0 to 3"):
        analysis.switched_off([(3, 0)])


def test_functions_that_need_the_layers_say_so(tmp_path: Any) -> None:
    model = load_own(OwnViT())
    analysis = vitviz.analyze(picture(), model)
    from vitviz.evaluation.probes import PROBES
    from vitviz.evaluation.probes.table import probe

    for name in PROBES:
        try:
            probe(analysis, name)
        except VitvizError as error:
            assert "watches" in str(error) or "watched" in str(error) or "norms" in str(error), (name, error)
    with pytest.raises(VitvizError, match="watches"):
        vitviz.save_checkpoint(tmp_path / "own.safetensors", model)
    analysis.rollout(exclude="outliers")
    analysis.rollout(exclude="sinks")


def test_cost_holds_the_trace_and_knows_of_bias() -> None:
    plain, biased = (load_own(OwnViT(has_bias=has_bias)) for has_bias in (False, True))
    for model in (plain, biased):
        analysis = vitviz.analyze(picture(), model)
        trace = analysis.trace
        bias = 0 if trace.bias is None else trace.bias.nbytes
        logarithms = 4 * trace.layers * trace.heads * trace.layout.token_count
        assert trace.value_norms is not None
        norms = trace.value_norms.nbytes
        cost = vitviz.cost(picture(), model)
        assert cost.trace_bytes == trace.queries.nbytes + trace.keys.nbytes + bias + logarithms + norms
        assert cost.flops > 0
    with pytest.raises(vitviz.LimitError, match=r"need .* bytes"):
        vitviz.analyze(picture(), plain, max_bytes=1000)


def test_a_likeness_reads_what_the_classifier_reads() -> None:
    module = OwnViT()
    model = load_own(module)
    first = vitviz.analyze(picture(), model)
    target = vitviz.likeness(vitviz.analyze(picture().rotate(90), model))
    pixels = first.prepared.pixels
    close(model.network.output(pixels, "features"), module.norm(module.encode(pixels))[:, 0])
    assert first.map("relevance", target=target).values.max() > 0
    with pytest.raises(VitvizError, match="OwnViT: a watched module does not expose its final patch tokens"):
        vitviz.likeness(first, patch=(0, 0))


@pytest.mark.parametrize("shape", [(25, 8), (1, 25, 8), (4, 25, 8), (1, 1, 25, 8), (1, 4, 25, 8)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_attention_of_one_image_may_leave_out_dimensions(shape: tuple[int, ...], has_bias: bool) -> None:
    bias, calls = torch.randn(25).expand(25, 25) if has_bias else None, []

    def attend(pixels: torch.Tensor) -> torch.Tensor:
        queries, keys, values = pixels.unbind()
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)

    pixels = torch.randn(3, *shape)
    Replay.of(attend, pixels)(pixels, lambda call: (calls.append(call), call.output)[1])
    call = calls[0]
    assert call.queries.shape == call.keys.shape
    assert call.queries.ndim == 4
    close(call.context(), call.output)
