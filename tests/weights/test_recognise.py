"""What a checkpoint is, told from its keys and shapes alone; and what is no checkpoint of this kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity import CASES
from tests.parity.states import WIDTH, Kept, answer, facts_of, prefixed, read, refusal
from tests.support.checkpoints import State, timm_state
from tests.support.long_runs import one_in
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.families import FAMILIES

pytestmark = pytest.mark.parity
EVERY = {family.name: family for family in FAMILIES}
FIRST = {case.family: case for case in reversed(CASES) if case.family in EVERY}


# Wrappers: whatever a state dict is wrapped in, it is the same network.

WRAPPERS: dict[str, tuple[Callable[[State], Any], str]] = {
    "bare": (lambda state: state, ""),
    "model": (lambda state: {"model": state}, "model"),
    "state_dict": (lambda state: {"state_dict": state}, "state_dict"),
    "state_dict.model": (lambda state: {"state_dict": {"model": state}}, "state_dict.model"),
    "a training run": (
        lambda state: {"model": state, "optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}, "epoch": 7},
        "model",
    ),
    "several processes": (lambda state: prefixed("module.", state), "module"),
    "torch.compile": (lambda state: prefixed("_orig_mod.", state), "_orig_mod"),
    "both": (lambda state: {"model": prefixed("module._orig_mod.", state)}, "module._orig_mod"),
    "a module in a module": (lambda state: prefixed("model.vit.", state), "model.vit"),
    "Lightning": (
        lambda state: {"state_dict": prefixed("net.", state), "pytorch-lightning_version": "2", "epoch": 1},
        "net",
    ),
}


@pytest.mark.parametrize(("wrap", "where"), WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapped_state_dict_is_the_same_network(wrap: Callable[[State], Any], where: str, tmp_path: Path) -> None:
    state = timm_state()
    reading, bare = read(wrap(state), tmp_path), read(state, tmp_path, "bare.pth")
    overrides = facts_of(reading)
    assert overrides["family"] == EVERY["timm"].title
    assert torch.equal(answer(reading), answer(bare))
    assert (where in overrides["encoder"]) if where else ("encoder" not in overrides)


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("is_scaled", [True, False])
def test_layers_of_dinov2_in_chunks_are_the_same_network(chunks: int, is_scaled: bool, tmp_path: Path) -> None:
    kept = Kept(FIRST["dinov2"], tmp_path)
    state = {key: tensor for key, tensor in kept.state.items() if is_scaled or ".ls" not in key}
    chunked = {
        re.sub(r"^blocks\.(\d+)", lambda layer: f"blocks.{int(layer[1]) * chunks // 3}.{layer[1]}", key): tensor
        for key, tensor in state.items()
    }
    # Without LayerScale, only the chunks tell DINOv2's class from timm's.
    plain = kept.read(state, family="dinov2") if is_scaled else None
    reading = kept.read(prefixed("backbone.", chunked))
    assert facts_of(reading)["family"] == EVERY["dinov2"].title
    assert plain is None or torch.equal(answer(reading), answer(plain))
    del chunked[next(key for key in chunked if key.endswith(".1.norm1.weight"))]
    with pytest.raises(CheckpointError, match=r"missing 'blocks\..*1\.norm1\.weight'"):
        kept.read(chunked)


def test_of_teacher_and_student_the_teacher_is_taken_and_the_other_is_named(tmp_path: Path) -> None:
    states = {name: timm_state(classes=None) for name in ("student", "teacher")}
    states["teacher"]["norm.bias"] += 1
    reading = read({name: prefixed("module.backbone.", state) for name, state in states.items()}, tmp_path)
    assert facts_of(reading)["family"] == EVERY["dino"].title
    assert torch.equal(answer(reading), answer(read(states["teacher"], tmp_path, "teacher.pth")))
    (encoder,) = (check for check in reading.checks if check.fact == "encoder")
    assert "teacher" in encoder.value and "student.module.backbone" in encoder.source


@pytest.mark.parametrize("classes", [None, 1, 2, 10, 1000, 1001])
def test_a_head_of_any_size_or_none(classes: int | None, tmp_path: Path) -> None:
    reading = read({"model": timm_state(classes=classes)}, tmp_path)
    assert reading.model.network.config.classes == (classes or 0)
    assert len(reading.model.labels) == (classes or 0)
    assert answer(reading).shape == (1, WIDTH if classes is None else classes)


def test_a_head_may_stand_outside_of_the_encoder(tmp_path: Path) -> None:
    state = timm_state()
    heads = ("head.weight", "head.bias")
    apart = {("model." if key in heads else "model.vit.") + key: tensor for key, tensor in state.items()}
    assert torch.equal(answer(read(apart, tmp_path)), answer(read(state, tmp_path, "inside.pth")))
    other = {("net." if key in heads else "net.backbone.") + key: tensor for key, tensor in state.items()}
    # DINO's training has keys like these, but no classifier.
    assert facts_of(read(other, tmp_path))["family"] == EVERY["timm"].title
    assert torch.equal(answer(read(other, tmp_path)), answer(read(state, tmp_path, "inside.pth")))


# Every key is needed, or its absence is a network that there is.


# Keys whose absence is legal: biases, heads, tokens that only some models have, and what is not needed anyway.
LEGAL = {
    "dino": {"patch_embed.proj.bias"},
    "dinov2": {"patch_embed.proj.bias", "mask_token"},
    "timm": {"patch_embed.proj.bias", "head.bias"},
    "transformers-vit": {"classifier.bias", "vit.embeddings.patch_embeddings.projection.bias"},
    "google-npz": {"embedding/bias", "head/bias"},
    "jax-port": {"embedding.bias", "classifier.bias"},
    "vit-pytorch": {"to_patch_embedding.2.bias", "mlp_head.bias"},
    "vit-pytorch-first": {"to_patch_embedding.1.bias", "mlp_head.1.bias"},
    "multihead": {"image_to_embeddings.0.projector.bias", "head.linear.bias"},
    "sequential": {"0.projection.0.bias", "2.2.bias"},
}


def alike(keys: Iterable[str]) -> dict[str, list[str]]:
    """Keys that differ in their first number only, by what they share."""
    kinds: dict[str, list[str]] = {}
    for key in sorted(keys):
        kinds.setdefault(re.sub(r"\d+", "*", key, count=1), []).append(key)
    return kinds


@pytest.mark.parametrize("case", one_in(3, FIRST))
def test_every_key_of_every_family_is_needed_and_named(case: Any, tmp_path: Path) -> None:
    kept = Kept(case, tmp_path)
    needless = kept.read_from_memory(kept.state).ignored.keys()
    # Later layers are read as the first one is; of timm's keys, a test above leaves out those of each layer.
    layers = [
        keys for keys in alike(kept.state).values() if re.findall(r"^\D*(\d+)", "\n".join(keys), re.M) == list("012")
    ]
    later = {key for keys in layers for key in keys[1:]}
    loaded = set()
    for key in kept.state.keys() - later:
        try:
            kept.read_from_memory(kept.without(key))
            loaded.add(key)
        except CheckpointError as error:
            # A key of the signature is not missed; another spelling may be named, or what another layout leaves open.
            others = ("no layout that vitviz has a network for", ": missing '", "leaves facts open")
            assert any(text in str(error) for text in (f"'{key}'", *others))
    assert loaded - needless == LEGAL[case.family] - needless


@pytest.mark.parametrize("case", one_in(3, FIRST, first=1))
def test_a_key_too_many_is_named(case: Any, tmp_path: Path) -> None:
    kept = Kept(case, tmp_path)
    for surplus in ("unheard.of.weight", "blocks.0.attn.unheard_of", "0"):
        with pytest.raises(CheckpointError, match="surplus.*" + re.escape(f"'{surplus}'")):
            kept.read_from_memory({**kept.state, surplus: torch.ones(2)})


@pytest.mark.parametrize("case", one_in(4, FIRST))
def test_what_all_layers_lack_is_a_bias_or_a_scale_or_refused(case: Any, tmp_path: Path) -> None:
    kept = Kept(case, tmp_path)
    needless = kept.read_from_memory(kept.state).ignored.keys()
    loaded = set()
    for name, keys in alike(kept.state.keys() - needless).items():
        if len(keys) == 3:
            try:
                kept.read_from_memory(kept.without(*keys))
                loaded.add(name)
            except CheckpointError:
                pass
    # Linear maps without bias and layers without LayerScale do exist.
    assert [name for name in loaded if not re.search(r"bias$|gamma(_\d)?$", name)] == []
    assert [name for name in loaded if re.search("norm", name)] == []


def test_a_bias_without_its_weight_is_no_missing_projection(tmp_path: Path) -> None:
    """vit-pytorch has none with one head, and then has no bias, either."""
    kept = Kept(FIRST["vit-pytorch"], tmp_path)
    with pytest.raises(CheckpointError, match=r"missing 'transformer\.layers\.0\.0\.to_out\.0\.weight'"):
        kept.read_from_memory(kept.without(*(key for key in kept.state if key.endswith("to_out.0.weight"))))


def test_the_one_key_by_which_a_layout_is_told_is_named(tmp_path: Path) -> None:
    state = {key: tensor for key, tensor in timm_state().items() if key != "pos_embed"}
    assert "of the layout 'timm' there is no 'pos_embed'" in refusal(state, tmp_path)


def test_layers_with_a_gap_are_refused_at_once(tmp_path: Path) -> None:
    state = timm_state()
    far = {key.replace("blocks.1.", "blocks.3."): tensor for key, tensor in state.items()}
    assert "missing 'blocks.1.norm1.weight'" in refusal(far, tmp_path)
    for number in ("1000000", "9" * 5000, "01", "１"):
        beyond = {key.replace("blocks.1.", f"blocks.{number}."): tensor for key, tensor in state.items()}
        assert "surplus" in refusal(beyond, tmp_path)


def test_two_keys_of_the_same_thing_are_refused(tmp_path: Path) -> None:
    state = timm_state()
    scales = {f"blocks.0.{name}": torch.ones(WIDTH) for name in ("ls1.gamma", "gamma_1")}
    assert "'blocks.0.ls1.gamma' and 'blocks.0.gamma_1' are two keys of the same thing" in refusal(
        {**state, **scales}, tmp_path
    )
    both = {**state, "fc_norm.weight": torch.ones(WIDTH)}
    assert "'norm.weight' and 'fc_norm.weight'" in refusal(both, tmp_path)


@pytest.mark.parametrize("case", one_in(3, FIRST, first=2))
def test_needless_keys_are_passed_over_with_their_reasons(case: Any, tmp_path: Path) -> None:
    family, kept = EVERY[case.family], Kept(case, tmp_path)
    encoder = [check.value for check in kept.read_from_memory(kept.state).checks if check.fact == "encoder"]
    prefix = encoder[0].split("'")[1] + "." if encoder else ""
    inside = {prefix + pattern.replace("*", "0.something"): reason for pattern, reason in family.ignored.items()}
    outside = {pattern.replace("*", "0.something"): reason for pattern, reason in family.outside.items()}
    # Beside the encoder there is only something where the encoder has a prefix.
    beside = (
        kept.state if prefix else prefixed("teacher.backbone." if case.family == "dino" else "backbone.", kept.state)
    )
    for state, needless in ((kept.state, inside), (beside, outside)):
        reading = kept.read_from_memory({**state, **{key: torch.ones(3) for key in needless}})
        for key, reason in needless.items():
            assert reading.ignored[key] == reason


# The output projection says how wide queries are, so that these name the queries instead.
AGAINST_OUT = ("/out/kernel", ".attn.out.weight", ".to_out.0.weight")


@pytest.mark.parametrize("case", one_in(4, FIRST, first=2))
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["one each", "every shape"])
def test_a_wrong_shape_names_the_key_what_was_found_and_what_was_expected(
    case: Any, every: bool, tmp_path: Path
) -> None:
    """Every key in one wrong shape, every shape in some key of each family; a long run tries all of both."""
    kept = Kept(case, tmp_path)
    needless = kept.read_from_memory(kept.state).ignored.keys()
    for number, (key, tensor) in enumerate(kept.state.items(), list(FIRST).index(case.family)):
        # Later layers are compared with the same code.
        if key in needless or re.search(r"(\.|_)[12][./]", key):
            continue
        shapes = {
            "nothing": torch.ones(()),
            "empty": torch.ones([0] * tensor.ndim),
            "long": torch.ones([tensor.shape[0] * 5 + 1, *tensor.shape[1:]]),
            "nested": tensor[None, None],
        }
        for turn, (what, changed) in enumerate(shapes.items()):
            if not every and turn != number % 4:
                continue
            if what == "empty" and re.search("(reg_token|storage_tokens|register_tokens)$", key):
                continue
            try:
                kept.read_from_memory({**kept.state, key: changed})
            except CheckpointError as error:
                message = str(error)
                # One dimension more is an older release of vit-pytorch, whose pooling is asked for.
                older = (case.family, key, what) == ("vit-pytorch", "cls_token", "nested")
                named = key in message or "config.json says" in message or key.endswith(AGAINST_OUT)
                assert named or (older and "pooling=…" in message), message
                assert len(message) < 1500
            else:
                # An axis of length 1 in front of a token or a table of positions says nothing; more registers are more.
                # And JAX's kernels have the height of a patch first.
                token = re.search("(class_embedding|token|pos|cls$|probe|embedding/kernel)", key)
                assert token and what in ("nested", "long"), (key, what)


# The user's word, and names that are made to deceive.


def test_a_family_can_be_said_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    state = timm_state(classes=None)
    assert facts_of(read(state, tmp_path))["family"] == EVERY["dino"].title
    said = read(state, tmp_path, family="timm", position_rule=None)
    assert (said.checks[0].value, said.checks[0].source) == (EVERY["timm"].title, "stated by the user")
    assert said.model.network.config.position_rule != read(state, tmp_path).model.network.config.position_rule
    with pytest.raises(CheckpointError, match=r"family 'tim': expected 'dinov2', .*'timm'.* or 'sequential'"):
        read(state, tmp_path, family="tim")


NAMES = ["__proto__", "a\nb\x1b[31m\x00c", "\u202egnp", "x" * 10_000, "", "..", "blocks." * 1000, "é" * 300]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_of_a_key_is_shown_short_and_escaped(name: str, tmp_path: Path) -> None:
    for state in (
        {name: torch.ones(2)},
        {**timm_state(), name: torch.ones(2)},
        {**timm_state(), f"head.{name}": torch.ones(2)},
    ):
        message = refusal(state, tmp_path)
        assert message.isprintable() and "\u202e" not in message
    # Where the encoder stands is told as well.
    wrapped = read(prefixed(f"{name}.", timm_state()), tmp_path)
    assert all(check.value.isprintable() and len(check.value) < 400 for check in wrapped.checks)
