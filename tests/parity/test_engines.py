"""Modules in memory: vitviz's own network with a copy of their weights, and the modules themselves, watched."""

from __future__ import annotations

import copy
import pickle
import random
import shutil
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.parity import CASES
from tests.parity.both_ways import TOLERANCE, both_ways
from tests.parity.case import Case, randomised
from tests.parity.random_draws import silent
from tests.reference_packages import timm, transformers
from tests.support.long_runs import SEED
from tests.support.reading import read_checkpoint
from vitviz import Model, VitvizError, load
from vitviz.models.watched.network import WatchedNetwork
from vitviz.weights.modules import own_engine
from vitviz.weights.overrides import Stated

pytestmark = pytest.mark.parity

# Modules that return no features of an image alone, or others every time.
NOT_WATCHED = (
    "you have to specify input_ids",
    "expected a module without randomness",
    "expected a tensor, or forward",
)


# SigLIP's classifier of transformers reads the mean of the patches, beside a pooling that nothing reads; MAE's encoder
# pools nothing.
WATCHED = {("transformers SigLIP vision", "classifier"), ("MAE (timm)", "encoder")}


def one_of_some_rows() -> list[Case]:
    """Drawn by the seed, and those that no copy stands for."""
    rows: dict[str, list[Case]] = defaultdict(list)
    for case in CASES:
        rows[case.row].append(case)
    chance = random.Random(SEED)
    drawn = {chance.choice(rows[row]) for row in chance.sample(sorted(rows), len(rows) // 6)}
    return [case for case in CASES if case in drawn or (case.row, case.name) in WATCHED]


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(one_of_some_rows(), id=f"some of the rows, seed {SEED}"),
        pytest.param(CASES, id="all", marks=pytest.mark.long),
    ],
)
def test_both_engines_have_the_same_trace_on_the_rows_of_the_table(cases: Sequence[Case], tmp_path: Path) -> None:
    engines: dict[tuple[str, str], str] = {}
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        torch.manual_seed(0)
        with silent():
            reference = case.make(folder)
            if reference.module is None:
                continue
            # As somebody has it who knows what its checkpoint says.
            config = read_checkpoint(reference.path, **case.overrides).model.network.config
            shutil.rmtree(folder)
            options: dict[str, Any] = {"image_size": case.sizes[0], "prefix": config.prefix, "normalisation": "half"}
            options["labels"] = [str(number) for number in range(config.classes)]
            try:
                own = load(reference.module, **options)
            except VitvizError as error:
                assert any(reason in str(error).lower() for reason in map(str.lower, NOT_WATCHED)), error
                continue
            engines[case.row, case.name] = own.engine
            module = load(reference.module, **options, engine="module")
        assert isinstance(module.network, WatchedNetwork)
        if own.engine == "own":
            with silent():
                both_ways(module, own, torch.randn(1, case.channels, *case.sizes[0]))
    assert len({row for row, _ in engines}) > 5
    assert {case for case, engine in engines.items() if engine == "module"} == WATCHED


# What the choice of the engine says, and what a copy cannot stand for.


def tiny() -> nn.Module:
    return randomised(timm.create_model("vit_tiny_patch16_224", depth=2, img_size=48, num_heads=6, num_classes=5))


def load_tiny(module: nn.Module, **options: Any) -> Model:
    with silent():
        return load(module, labels=list("abcde"), **options)


def test_a_family_that_vitviz_does_not_have_is_watched_and_the_card_says_why() -> None:
    options = {"img_size": 48, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
    model = load_tiny(randomised(timm.create_model("beit_base_patch16_224", **options)))
    assert model.engine == "module" and "relative position biases" in model.card["engine"]


class Subclass(type(tiny())):  # type: ignore[misc]
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(pixels.clamp(-9, 9))


def with_hook(module: nn.Module) -> None:
    module.blocks[1].mlp.register_forward_hook(lambda part, given, found: found)  # type: ignore[index,union-attr]


def with_pre_hook(module: nn.Module) -> None:
    module.norm.register_forward_pre_hook(lambda part, given: given)  # type: ignore[union-attr]


def with_method(module: nn.Module) -> None:
    attention = module.blocks[0].attn  # type: ignore[index,union-attr]
    attention.forward = types.MethodType(type(attention).forward, attention)


def with_parametrization(module: nn.Module) -> None:
    parametrizations.weight_norm(module.head)
    module.eval()


def with_adapter(module: nn.Module) -> None:
    class Adapter(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.inner(tokens)  # type: ignore[no-any-return]

    module.blocks[0].attn.proj = Adapter(module.blocks[0].attn.proj).eval()  # type: ignore[index,union-attr]


def with_own_class(module: nn.Module) -> None:
    module.__class__ = Subclass


def with_half_precision(module: nn.Module) -> None:
    module.bfloat16()


FOREIGN: dict[Callable[[nn.Module], None], str] = {
    with_hook: "its part 'blocks.1.mlp' has a hook",
    with_pre_hook: "its part 'norm' has a hook",
    with_method: "its part 'blocks.0.attn' has a method of its own",
    with_parametrization: "its part 'head' is a torch.nn.utils.parametrize.ParametrizedLinear",
    with_adapter: "its part 'blocks.0.attn.proj' is a tests.parity.test_engines.with_adapter.<locals>.Adapter",
    with_own_class: "its class Subclass is none of 'timm', 'transformers', 'open_clip' or 'torchvision'",
    with_half_precision: "'cls_token' is bfloat16, and a copy would compute in float32",
}


@pytest.mark.parametrize("change", FOREIGN, ids=lambda change: change.__name__)
def test_what_a_copy_would_lack_is_left_to_the_module(change: Callable[[nn.Module], None]) -> None:
    module = tiny()
    change(module)
    # timm's class says its preprocessing; a subclass has the same.
    model = load_tiny(module)
    assert (model.engine, model.card["engine"]) == ("module", f"the module itself: {FOREIGN[change]}")
    with pytest.raises(VitvizError, match=r"^engine 'own': .*; expected engine = 'module'$"):
        load_tiny(module, engine="own")
    # Where it is not, nothing of this is said.
    assert load_tiny(tiny()).engine == "own"


def test_a_class_whose_method_was_replaced_is_left_to_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = tiny()
    kind = type(module.blocks[0].attn)  # type: ignore[index,union-attr]
    own = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *given, **options: own(self, *given, **options))
    assert load_tiny(module).card["engine"] == f"the module itself: forward of {kind.__name__} was replaced"


def test_a_module_that_is_called_in_another_way_is_left_to_it() -> None:
    model = load_tiny(tiny(), forward=lambda module, pixels: module(pixels))
    assert model.card["engine"] == "the module itself: forward=… calls it in a way of its own"


def test_another_network_is_never_taken_for_the_module() -> None:
    module = tiny()
    module.norm.eps = 0.5  # type: ignore[union-attr,assignment]
    assert "differs from the module's by" in load_tiny(module).card["engine"]
    with pytest.raises(VitvizError, match=r"^engine 'own': .* differs from the module's by .*$"):
        load_tiny(module, engine="own")
    with pytest.raises(VitvizError, match=r"^engine 'ours': expected"):
        load_tiny(module, engine="ours")


def test_a_watched_module_unlike_the_network_of_its_family_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = own_engine.read_tensors

    def with_fewer_heads(file: Any, sidecars: Any, stated: Stated, name: str) -> Any:
        return read(file, sidecars, replace(stated, facts={**stated.facts, "heads": 3}), name)

    monkeypatch.setattr(own_engine, "read_tensors", with_fewer_heads)
    seen = "has 2 layers of 3 heads among 10 tokens, and the module was seen to have 2 layers of 6 heads among 10"
    with pytest.raises(VitvizError, match=f"^vit_tiny_patch16_224: vitviz's network of its family {seen} tokens; "):
        load_tiny(tiny())
    assert load_tiny(tiny(), engine="module").engine == "module"


def mae(**settings: Any) -> nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    return randomised(transformers.ViTMAEModel(transformers.ViTMAEConfig(**sizes, image_size=48, **settings)))


@pytest.mark.parametrize("engine", ["own", "module"])
def test_mae_opens_with_all_its_patches_in_order(engine: str) -> None:
    with silent():
        module = mae(mask_ratio=0.0)
        pixels = torch.randn(1, 3, 48, 64)
        trace = load(module, normalisation="half", engine=engine).network.encode(pixels).traces[0]
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


# A copy is one of the weights as they were.


def trained(module: nn.Module) -> None:
    with torch.no_grad():
        module.head.weight.mul_(2)  # type: ignore[union-attr,operator]


def averaged(module: nn.Module) -> None:
    # torch does not count changes through .data.
    module.head.weight.data.mul_(2)  # type: ignore[union-attr,operator]


def replaced(module: nn.Module) -> None:
    module.load_state_dict({key: tensor + 1 for key, tensor in module.state_dict().items()}, assign=True)


def with_other_pooling(module: Any) -> None:
    module.global_pool = "avg"


@pytest.mark.parametrize(
    "change",
    [trained, averaged, replaced, with_hook, with_method, with_adapter, with_half_precision, with_other_pooling],
)
def test_a_module_that_changes_after_it_was_loaded_is_noticed(change: Callable[[nn.Module], None]) -> None:
    module, pixels = tiny(), torch.randn(1, 3, 48, 48)
    model = load_tiny(module)
    model.network.encode(pixels)
    change(module)
    changed = "^vit_tiny_patch16_224: the module has changed since its weights were copied"
    message = rf"{changed}: load it again .* and analyse the picture again, or load copy.deepcopy\(module\)"
    for run in (model.network.encode, model.network.output, model.network):
        with pytest.raises(VitvizError, match=message):
            run(pixels)


def test_a_copy_of_the_model_and_one_without_its_module_stay_what_they_are() -> None:
    module, pixels = tiny(), torch.randn(1, 3, 48, 48)
    model = load_tiny(module)
    expected = model.network(pixels)
    copies = copy.deepcopy(model.network), pickle.loads(pickle.dumps(model.network))
    trained(module)
    assert all(torch.equal(each(pixels), expected) for each in copies)  # type: ignore[operator]
    del module
    assert torch.equal(model.network(pixels), expected)


def test_a_classifier_of_transformers_is_vitvizs_own_after_its_attentions_were_asked_for() -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.ViTConfig(image_size=48, patch_size=16, num_labels=5, attn_implementation="eager", **sizes)
    with silent():
        module = randomised(transformers.ViTForImageClassification(config))
        before, pixels = load(module, normalisation="half"), torch.randn(1, 3, 48, 48)
        # Leaves hooks of transformers' own in it.
        weights = module(pixels, output_attentions=True).attentions[0][0]
        assert load(module, normalisation="half").engine == before.engine == "own"
        assert torch.allclose(before.network.encode(pixels).traces[0].weights(0), weights, atol=1e-5)
