"""One door: a name, a hub id, a file or a folder; what cannot be meant is said in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.hub_server import HubServer
from tests.support.checkpoints import State, timm_state
from tests.support.makers import MakeModel
from vitviz import CheckpointError, ConfigError, LimitError, Model, load, save_checkpoint
from vitviz.weights import ZOO, NamedModel
from vitviz.weights.formats.tensors import WeightFile

NAME, REPOSITORY, REVISION = "dino_vits_small", "someone/vit-small", "v2"
WEIGHTS = "model.safetensors"


# What these weights alone leave open.
OPEN = {"heads": 4, "activation": "gelu", "norm_epsilon": 1e-6, "pooling": "cls"}


def state_of(seed: int = 0) -> State:
    """Random weights by timm's names: 2 layers, 16 features an input, patches of 8 in 32×32 pixels, 7 classes."""
    return timm_state(width=64, hidden=96, seed=seed)


def published(folder: Path, seed: int = 0, **config: object) -> dict[str, bytes]:
    """The files of a repository of timm's."""
    save_file(state_of(seed), folder / WEIGHTS)
    arguments = {"img_size": 32, "embed_dim": 64, "depth": 2, "mlp_ratio": 1.5, "num_heads": 2}
    described = {"architecture": "vit_small_patch8_224", "num_classes": 7, "model_args": arguments, **config}
    return {"config.json": json.dumps(described).encode(), WEIGHTS: (folder / WEIGHTS).read_bytes()}


@pytest.fixture
def server(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    """A hub with one checkpoint, an empty cache, and a name for the checkpoint."""
    (tmp_path / "made").mkdir()
    server.add(REPOSITORY, published(tmp_path / "made"))
    server.add(REPOSITORY, published(tmp_path / "made", seed=1), revision=REVISION)
    entry = NamedModel(NAME, "DINO", "ViT-S", REPOSITORY, 0.4, "mit", 32, "Small.")
    monkeypatch.setitem(ZOO, NAME, entry)
    return server


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """The message with which a source is refused."""

    def refused(source: object, **options: object) -> str:
        with pytest.raises(CheckpointError) as caught:
            load(source, **options)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 600
        return str(caught.value)

    return refused


def classifier(model: Model) -> torch.Tensor:
    return model.network.state_dict()["classifier.weight"]


def holds(model: Model, seed: int) -> bool:
    return torch.equal(classifier(model), state_of(seed)["head.weight"])


# What can be opened.


def test_a_name_is_looked_up_downloaded_and_given_to_the_model(server: HubServer) -> None:
    model = load(NAME)
    assert model.name == NAME
    assert holds(model, seed=0)
    assert model.network.config.heads == 2
    assert model.card["architecture"].startswith("vit_small_patch8_224")
    assert len(server.requests(f"GET {WEIGHTS}")) == 1


@pytest.mark.slow
def test_a_revision_stands_behind_it(server: HubServer, tmp_path: Path) -> None:
    model = load(f"hf:{REPOSITORY}@{REVISION}", heads=4)
    assert model.name == REPOSITORY
    assert holds(model, seed=1)
    assert holds(load(f"hf:{REPOSITORY}", heads=4), seed=0)
    commit = server.add(REPOSITORY, published(tmp_path / "made", seed=2))
    for revision, seed in ((f"@{REVISION}", 1), (f"@{commit}", 2), ("@main", 2), ("", 2), ("@", 2)):
        assert holds(load(f"hf:{REPOSITORY}{revision}", heads=4), seed)


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("own", [False, True], ids=["foreign", "vitviz's own"])
def test_a_file_is_called_by_its_name(tmp_path: Path, make_model: MakeModel, kind: type, own: bool) -> None:
    path = tmp_path / "mine.safetensors"
    if own:
        save_checkpoint(path, make_model())
        model = load(kind(path))
    else:
        save_file(state_of(), path)
        model = load(kind(path), **OPEN)
        assert holds(model, seed=0)
    assert model.name == "mine"
    assert model.network.config.classes == len(model.labels)


def test_a_name_means_the_same_where_a_file_is_called_so(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).write_bytes(b"something else")
    assert load(NAME).name == NAME
    with pytest.raises(CheckpointError, match="cannot be read, or is damaged"):
        load(f"./{NAME}")
    with pytest.raises(CheckpointError, match="cannot be read, or is damaged"):
        load(Path(NAME).resolve())


# What is refused.


def test_an_unknown_name_is_answered_with_near_ones(server: HubServer, told: Callable[..., str]) -> None:
    message = told("dino_vits_smal")
    assert message.startswith("'dino_vits_smal': neither a checkpoint's name nor a file or folder; did you mean ")
    assert f"'{NAME}'" in message.split("?")[0]
    assert "'vitviz-photos'" in told("vitviz_photos").split("?")[0]
    for name in ("zzz", "dino_vits_smal"):
        assert told(name).endswith(
            "vitviz.list_models() or `vitviz models` lists the names, 'vitviz-photos' is bundled"
        )
    assert "did you mean" not in told("zzz")
    assert "of timm, write 'timm:swin_tiny_patch4'; " in told("swin_tiny_patch4")
    assert not server.log


def test_a_hub_id_without_its_sign_is_told_how_it_is_written(
    server: HubServer, told: Callable[..., str], tmp_path: Path
) -> None:
    assert f"of the hub, write 'hf:{REPOSITORY}'" in told(REPOSITORY)
    for path in (
        f"./{NAME}",
        "../gone",
        "a/b/c",
        "gone.safetensors",
        "runs/model.ckpt",
        "runs/MODEL.PTH",
        str(tmp_path / "gone"),
        "~/gone",
        "",
    ):
        assert "hf:" not in told(path)
    assert not server.log


def test_a_folder_of_that_name_comes_before_the_hub(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / REPOSITORY
    folder.mkdir(parents=True)
    save_file(state_of(5), folder / WEIGHTS)
    monkeypatch.chdir(tmp_path)
    assert holds(load(REPOSITORY, **OPEN), seed=5)
    assert holds(load(f"hf:{REPOSITORY}", heads=4), seed=0)


def test_a_refusal_names_what_the_user_asked_for(server: HubServer, told: Callable[..., str], tmp_path: Path) -> None:
    """Not the commit, which is what the file's folder in the cache is called."""
    path = tmp_path / "other.safetensors"
    save_file({"layer1.0.conv1.weight": torch.zeros(4, 4)}, path)
    commit = server.add("someone/resnet", {WEIGHTS: path.read_bytes()})
    assert told("hf:someone/resnet").startswith("someone/resnet: ")
    assert told(NAME, heads=5).startswith(f"{NAME}: ")
    assert commit not in told("hf:someone/resnet")


# What it may take of memory.


def test_memory_that_runs_out_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    save_file(state_of(), tmp_path / "mine.safetensors")
    monkeypatch.setattr(WeightFile, "read", fail)
    with pytest.raises(LimitError, match=r"^mine\.safetensors: this machine has not enough .* choose a smaller model$"):
        load(tmp_path / "mine.safetensors", **OPEN)


# Where and in what precision it computes.


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_loaded_model_is_frozen(tmp_path: Path, precision: str) -> None:
    save_file(state_of(), tmp_path / "mine.safetensors")
    network = load(tmp_path / "mine.safetensors", precision=precision, **OPEN).network
    assert not network.training and not network(torch.zeros(1, 3, 32, 32)).requires_grad
    assert not any(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "kept", "near"),
    [("float32", torch.float32, 0), ("bfloat16", torch.bfloat16, 0.1), ("float16", torch.float16, 0.01)],
)
def test_the_precision_is_that_of_the_layers(precision: str, kept: torch.dtype, near: float) -> None:
    exact, model = load(), load(precision=precision)
    assert model.network.precision == kept
    assert model.network.encoder[0].attention.qkv.weight.dtype == kept
    assert model.network.classifier.weight.dtype == torch.float32
    pixels = torch.randn(2, 3, 32, 32)
    difference = (model.network(pixels) - exact.network(pixels)).abs().max() / exact.network(pixels).abs().max()
    assert difference == 0 if precision == "float32" else 0 < difference < near


@pytest.mark.parametrize("device", ["gpu", "", "meta", "cuda:99", torch.device("cuda:99"), 99])
def test_a_device_that_there_is_not_is_refused_before_anything_is_opened(device: object) -> None:
    with pytest.raises(ConfigError) as caught:
        load("no such checkpoint", device=device)
    message = f"device {str(device)!r}: this machine has none of this name; expected 'cpu'"
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_devices_that_there_are_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="'gpu': this machine has none of this name; expected 'cpu' or 'cuda'"):
        load(device="gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"'gpu': this machine has none of this name; expected 'cpu'$"):
        load(device="gpu")


def test_a_precision_that_there_is_not_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="precision 'int8': expected 'float32', 'bfloat16' or 'float16'"):
        load("no such checkpoint", precision="int8")
