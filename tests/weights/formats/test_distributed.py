"""Folders of torch.distributed.checkpoint: put together bit by bit, or refused by one sentence."""

from __future__ import annotations

import os
import pickle
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType

from tests.support.checkpoints import timm_state
from tests.support.weight_files import Tensors, check_same, expect_refusal, read_all
from vitviz.weights.formats.files import open_weights
from vitviz.weights.read import read_checkpoint

Shape = tuple[int, ...]
Chunk = tuple[Shape, Shape]
KINDS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@pytest.fixture(autouse=True)
def _without_a_word() -> Iterator[None]:
    with warnings.catch_warnings():
        # That it is a single process.
        warnings.simplefilter("ignore")
        yield


def cut_by_chance(shape: Shape, chosen: random.Random) -> list[Chunk]:
    """A shape in chunks at random: cut in two along any dimension, and each part again."""
    sides = [axis for axis, side in enumerate(shape) if side > 1]
    if not sides or chosen.random() < 0.6:
        return [((0,) * len(shape), shape)]
    axis = chosen.choice(sides)
    at = chosen.randrange(1, shape[axis])
    parts = []
    for start, length in ((0, at), (at, shape[axis] - at)):
        inner = (*shape[:axis], length, *shape[axis + 1 :])
        parts += [((*o[:axis], o[axis] + start, *o[axis + 1 :]), sizes) for o, sizes in cut_by_chance(inner, chosen)]
    return parts


def cut_in_halves(shape: Shape, chosen: random.Random) -> list[Chunk]:
    half = (shape[0] // 2, *shape[1:])
    return [((start, *(0 for _ in shape[1:])), half) for start in (0, half[0])]


class InChunks(dcp.DefaultSavePlanner):
    """torch's own planner, which cuts tensors as it is told."""

    def __init__(
        self, chosen: random.Random, cut: Callable[[Shape, random.Random], list[Chunk]] = cut_by_chance
    ) -> None:
        super().__init__()
        self.chosen, self.cut = chosen, cut

    def create_local_plan(self) -> SavePlan:
        plan = super().create_local_plan()
        items = [each for item in plan.items for each in self._cut(item)]
        self.chosen.shuffle(items)
        self.plan = replace(plan, items=items)
        return self.plan

    def _cut(self, item: WriteItem) -> list[WriteItem]:
        if item.tensor_data is None:
            return [item]
        size, properties = item.tensor_data.size, item.tensor_data.properties
        return [
            WriteItem(
                index=MetadataIndex(item.index.fqn, torch.Size(offsets), number),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)), properties, size
                ),
            )
            for number, (offsets, sizes) in enumerate(self.cut(tuple(size), self.chosen))
        ]

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self.state_dict[index.fqn]

    def resolve_data(self, write_item: WriteItem) -> Any:
        if write_item.tensor_data is None:
            return super().resolve_data(write_item)
        chunk = write_item.tensor_data.chunk
        inside = tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
        return self.state_dict[write_item.index.fqn][inside].detach()


def save(value: dict[str, Any], folder: Path, planner: SavePlanner | None = None, files: int = 1) -> Path:
    writer = FileSystemWriter(folder, single_file_per_rank=files == 1, thread_count=files)
    dcp.save(value, storage_writer=writer, planner=planner)
    return folder


@pytest.mark.parametrize("seed", range(6))
def test_any_chunks_in_any_files_are_put_together(seed: int, tmp_path: Path) -> None:
    chosen, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for number in range(8):
        shape = tuple(chosen.randint(1, 7) for _ in range(chosen.randrange(4)))
        tensors[f"layers.{number}.weight"] = torch.randn(shape, generator=generator).to(chosen.choice(KINDS))
    tensors["transposed"] = torch.randn(5, 3, generator=generator).t()
    tensors["part"] = torch.randn(5, 30, generator=generator)[:, 4:9]
    tensors["empty"], tensors["counts"] = torch.empty(0, 3), torch.arange(6).reshape(2, 3)
    folder = save({"model": tensors, "epoch": 3}, tmp_path / "run", InChunks(chosen), chosen.choice((1, 3)))
    file = open_weights(folder)
    assert (file.kind, file.folder, file.beside) == ("distributed torch", folder, ("epoch",))
    assert file.file_bytes == sum(each.stat().st_size for each in folder.iterdir())
    check_same(read_all(file, "model"), tensors)
    # Read by torch, the folder has the same.
    target = {"model": {key: torch.zeros_like(tensor) for key, tensor in tensors.items()}}
    dcp.load(target, checkpoint_id=folder)
    assert all(torch.equal(target["model"][key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize(
    "wrap", [lambda state: state, lambda state: {"model": state}, lambda state: {"a": {"b": state}}]
)
def test_a_network_opens_with_what_stands_around_and_beside_it(
    wrap: Callable[[Tensors], dict[str, Any]], tmp_path: Path
) -> None:
    state, said = timm_state(), {"heads": 3, "pooling": "cls", "activation": "gelu", "norm_epsilon": 1e-6}
    said |= {"final_norm": "before pooling", "position_rule": "bicubic", "normalisation": "half"}
    optimiser = {"state": {"head.weight": {"exp_avg": torch.ones(7, 192), "step": torch.tensor(2.0)}}}
    whole = {**wrap(state), "optimizer": {**optimiser, "param_groups": [{"lr": 0.1, "params": ["head.weight"]}]}}
    save(whole, tmp_path / "run", InChunks(random.Random(0)), 2)
    model = read_checkpoint(tmp_path / "run", **said).model
    torch.save(state, tmp_path / "whole.pth")
    expected = read_checkpoint(tmp_path / "whole.pth", **said).model
    found, known = model.network.state_dict(), expected.network.state_dict()
    assert model.name == "run" and found.keys() == known.keys()
    assert all(torch.equal(found[key], known[key]) for key in known)


def test_a_folder_says_where_it_was_saved(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(3, 2)}
    # Given a path, torch writes it into the metadata.
    dcp.save(tensors, checkpoint_id=tmp_path / "run")
    check_same(read_all(open_weights(tmp_path / "run")), tensors)
    check_same(read_all(open_weights(tmp_path / "run" / ".metadata")), tensors)
    with expect_refusal("__0_0.distcp", "one file of a distributed checkpoint; expected the path of its folder"):
        open_weights(tmp_path / "run" / "__0_0.distcp")


# What is refused.


class Harm:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.target),))


def metadata(folder: Path) -> Any:
    return pickle.loads((folder / ".metadata").read_bytes())


def write(folder: Path, value: object) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(value))


def with_storage(**changes: Any) -> Callable[[Path], None]:
    """Says something else of the first chunk of "w"."""

    def change(folder: Path) -> None:
        value = metadata(folder)
        index = next(index for index in value.storage_data if index.fqn == "w")
        value.storage_data[index] = replace(value.storage_data[index], **changes)
        write(folder, value)

    return change


def with_chunks(*chunks: Chunk) -> Callable[[Path], None]:
    """Says that "w" has these chunks, each of which is somewhere in the file."""

    def change(folder: Path) -> None:
        value = metadata(folder)
        made = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]
        value.state_dict_metadata["w"].chunks = made
        stored = [index for index in value.storage_data if index.fqn == "w"]
        places = [value.storage_data.pop(index) for index in stored]
        for chunk, place in zip(made, places, strict=False):
            value.storage_data[MetadataIndex("w", chunk.offsets)] = place
        write(folder, value)

    return change


def with_size(*size: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        value = metadata(folder)
        value.state_dict_metadata["w"].size = torch.Size(size)
        write(folder, value)

    return change


def with_dtype(folder: Path) -> None:
    value = metadata(folder)
    value.state_dict_metadata["w"].properties = TensorProperties(dtype=torch.float16)
    write(folder, value)


def without_a_place(folder: Path) -> None:
    value = metadata(folder)
    value.storage_data = {index: place for index, place in value.storage_data.items() if index.fqn != "w"}
    write(folder, value)


def all_in_one_place(folder: Path) -> None:
    value = metadata(folder)
    place = next(iter(value.storage_data.values()))
    value.storage_data = dict.fromkeys(value.storage_data, place)
    write(folder, value)


def one_list_for_many(folder: Path) -> None:
    value = metadata(folder)
    tensor = value.state_dict_metadata["w"]
    tensor.chunks = tensor.chunks * 1000
    value.state_dict_metadata = {f"{number}": replace(tensor) for number in range(2000)}
    write(folder, value)


def cut_short(folder: Path) -> None:
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])


def overwritten(folder: Path) -> None:
    file = folder / "__0_0.distcp"
    file.write_bytes(bytes(file.stat().st_size))


def half_a_pickle(folder: Path) -> None:
    file = folder / ".metadata"
    file.write_bytes(file.read_bytes()[:300])


HUGE = 2**62
REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing file": (with_storage(relative_path="__7_0.distcp"), "names '__7_0.distcp', which is not there"),
    "a file elsewhere": (with_storage(relative_path="../x.distcp"), r"names '\.\./x.distcp'; expected files in the"),
    "an absolute path": (with_storage(relative_path="/etc/passwd"), "names '/etc/passwd'; expected files in the"),
    "no path": (with_storage(relative_path=3), r"\.metadata that is damaged"),
    "beyond the file": (with_storage(offset=10**9), "a chunk up to byte 1,000,.* of '__0_0.distcp', which has"),
    "an offset below 0": (with_storage(offset=-8), r"\.metadata that is damaged"),
    "an endless length": (with_storage(length=2**62), "a chunk up to byte 4,611,"),
    "another place": (with_storage(offset=0, length=100), "overlap in|in 100 bytes|not of torch"),
    "compressed": (with_storage(transform_descriptors=["zstd"]), r"'w' is stored through \['zstd'\]; expected a dense"),
    "a gap": (with_chunks(((0, 0), (2, 6))), r"'w' of shape \(4, 6\), whose chunks have 12 values"),
    "too much": (with_chunks(((0, 0), (4, 6)), ((0, 1), (2, 1))), "whose chunks have 26 values"),
    "overlapping chunks": (
        with_chunks(((0, 0), (2, 6)), ((1, 0), (2, 6))),
        "chunks of 'w' that overlap; expected chunks that make up the tensor",
    ),
    "chunks beyond the tensor": (with_chunks(((0, 0), (2, 6)), ((3, 0), (2, 6))), r"beyond its shape \(4, 6\)"),
    "a chunk of other dimensions": (with_chunks(((0,), (24,))), r"\.metadata that is damaged"),
    "chunks of another shape": (with_chunks(((0, 0), (4, 3)), ((0, 3), (4, 3))), r"is float32 \(2, 6\); expected a"),
    "a chunk that is nowhere": (with_chunks(((0, 0), (2, 6)), ((2, 0), (1, 6)), ((3, 0), (1, 6))), "that is in no"),
    "no place at all": (without_a_place, "a chunk of 'w' that is in no file"),
    "one place for all": (all_in_one_place, "chunks that overlap in '__0_0.distcp'"),
    "huge": (with_size(HUGE, 6), r"of shape \(4611686018427387904, 6\), whose chunks have 24 values"),
    "huge chunks": (
        lambda folder: (with_size(HUGE, HUGE)(folder), with_chunks(((0, 0), (HUGE, HUGE)))(folder)),
        r"a chunk of 'w' of shape \(4611686018427387904, 4611686018427387904\) in [0-9,]+ bytes",
    ),
    "more chunks than bytes": (one_list_for_many, "more than 200,000 chunks of tensors"),
    "another dtype": (with_dtype, r"a chunk of 'w' that is float32 \(2, 6\); expected a dense one, float16"),
    "a file cut short": (cut_short, "a chunk up to byte"),
    "zeros": (overwritten, "a damaged zip archive"),
    "metadata cut short": (half_a_pickle, "its pickle is damaged"),
    "a program": (lambda folder: write(folder, Harm(folder / "harm")), "its pickle calls posix.mkdir, which is code"),
    "another pickle": (lambda folder: write(folder, {"a": 1}), r"\.metadata that is damaged, or not of torch.dist"),
    "an object of its own": (
        lambda folder: write(folder, metadata(folder).state_dict_metadata["w"]),
        r"\.metadata that is damaged",
    ),
    "no metadata": (lambda folder: (folder / ".metadata").unlink(), r"files .distcp without the .metadata that is"),
}


@pytest.mark.hostile
@pytest.mark.parametrize(("change", "found"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_lies_is_refused(change: Callable[[Path], object], found: str, tmp_path: Path) -> None:
    planner = InChunks(random.Random(0), cut_in_halves)
    folder = save({"w": torch.randn(4, 6), "v": torch.randn(4, 6)}, tmp_path / "run", planner)
    change(folder)
    with expect_refusal("run", found):
        read_all(open_weights(folder))
    assert not (folder / "harm").exists()
