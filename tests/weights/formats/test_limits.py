"""A file may ask for any amount of memory: it is computed and held to a limit before a tensor is read."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.support.checkpoints import State, timm_state
from vitviz import CheckpointError, LimitError, Model, VisionTransformer, load
from vitviz.weights import save_checkpoint
from vitviz.weights.formats import limits
from vitviz.weights.formats.limits import memory_for, needed_bytes
from vitviz.weights.formats.tensors import WeightFile

pytestmark = pytest.mark.hostile

WIDTH, HEADS, DEPTH, CLASSES = 64, 2, 12, 3


def shared_layers(depth: int) -> State:
    """timm's state dict of a network whose layers are all the same one, for images of 32 pixels."""
    one = timm_state(depth=1, classes=CLASSES, width=WIDTH, hidden=4 * WIDTH)
    return one | {
        key.replace(".0.", f".{layer}."): tensor
        for layer in range(depth)
        for key, tensor in one.items()
        if ".0." in key
    }


def opened(path: Path, **more: object) -> Model:
    return load(
        path, family="timm", heads=HEADS, image_size=32, normalisation="half", norm_epsilon=1e-6, activation="gelu",
        pooling="cls", final_norm="before pooling", position_rule="bicubic antialiased", **more,
    )  # fmt: skip


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    torch.save(shared_layers(DEPTH), tmp_path / "shared.pth")
    return tmp_path / "shared.pth"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of every tensor that is read from a file."""
    keys: list[str] = []
    read = WeightFile.read
    monkeypatch.setattr(WeightFile, "read", lambda self, group, key: (keys.append(key), read(self, group, key))[1])
    return keys


def test_layers_that_share_a_tensor_open_as_layers_of_their_own(shared: Path) -> None:
    network = opened(shared).network
    assert shared.stat().st_size < needed_bytes(network) / 5
    first, last = network.layers[0].attention.qkv.weight, network.layers[-1].attention.qkv.weight
    assert torch.equal(first, last) and first.data_ptr() != last.data_ptr()


def test_what_a_shared_tensor_expands_to_is_refused_before_any_is_read(shared: Path, reads: list[str]) -> None:
    needed = needed_bytes(opened(shared).network)
    reads.clear()
    sentence = (
        f"shared.pth: its network takes {needed:,} bytes of memory; at most {needed - 1:,} are allowed; allow more by "
        f"max_bytes={needed}"
    )
    with pytest.raises(LimitError) as refusal:
        opened(shared, max_bytes=needed - 1)
    assert str(refusal.value) == sentence
    assert reads == []
    opened(shared, max_bytes=needed)


def test_without_a_limit_a_file_may_take_as_much_as_its_size_warrants(
    shared: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(shared)
    reads.clear()
    monkeypatch.setattr(limits, "MAX_BYTES", 1000)
    size = shared.stat().st_size
    with pytest.raises(LimitError, match=rf"{size:,} bytes in which .*; at most {8 * size:,} .* by max_bytes=\d+$"):
        opened(shared)
    assert reads == []
    # Half the size in the file.
    torch.save({key: tensor.half() for key, tensor in shared_layers(1).items()}, shared)
    opened(shared)


def test_a_checkpoint_of_our_own_is_held_to_the_limit(tmp_path: Path, make_model: Callable[..., Model]) -> None:
    model = make_model()
    save_checkpoint(tmp_path / "own.safetensors", model)
    needed = needed_bytes(model.network)
    assert load(tmp_path / "own.safetensors", max_bytes=needed).network.config == model.network.config
    with pytest.raises(LimitError, match=rf"own\.safetensors: .* at most {needed - 1:,} are allowed"):
        load(tmp_path / "own.safetensors", max_bytes=needed - 1)


@pytest.mark.parametrize("limit", [-1, 1.5, "2 GB", True])
def test_a_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(CheckpointError, match="max_bytes = "):
        load(max_bytes=limit)  # type: ignore[arg-type]


def test_a_network_of_more_layers_than_any_is_refused(tmp_path: Path) -> None:
    torch.save(shared_layers(1001), tmp_path / "deep.pth")
    with pytest.raises(CheckpointError, match="1,001 encoder layers; expected at most 1,000"):
        opened(tmp_path / "deep.pth")


ERRORS = (
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 25165824 bytes."),
    torch.OutOfMemoryError("CUDA out of memory."),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_memory_that_runs_out_is_said_and_given_back(
    shared: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    read = WeightFile.read

    def load_some(*arguments: object) -> torch.Tensor:
        if len(made) == 20:
            raise error
        tensor = read(*arguments)  # type: ignore[arg-type]
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(WeightFile, "read", load_some)
    with pytest.raises(LimitError, match=r"^shared\.pth: its network takes [\d,]+ bytes of memory, and") as refusal:
        opened(shared)
    gc.collect()
    # However long the error is kept.
    assert len(made) == 20 and refusal.value.__traceback__ is not None
    assert [tensor for tensor in made if tensor() is not None] == []


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), memory_for("x", 1) as tensors:
        tensors["a"] = torch.ones(1)
        raise RuntimeError("shapes cannot be multiplied")
    assert tensors == {}


def test_what_is_needed_is_counted_without_memory(make_network: Callable[..., VisionTransformer]) -> None:
    network = make_network()
    expected = sum(tensor.nbytes for tensor in network.state_dict().values())
    assert needed_bytes(network) == needed_bytes(network.to("meta")) == expected
