"""Texts as targets for checkpoints of the hub and for uploaded ones: their tokenizers come along, as data."""

from __future__ import annotations

import gc
import json
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants, snapshot_download

import vitviz
from tests.hub_server import HubServer, close_session
from tests.parity.case import randomised
from tests.reference_packages import open_clip
from tests.towers import make_transformers, write_tokenizer
from tests.ui.test_models import apart
from vitviz import CheckpointError, Model
from vitviz.ui.models import ModelChoice, open_choice
from vitviz.weights.text_tower import open_text_tower, reads_text

pytestmark = pytest.mark.parity

NAME = "someone/clip-small"
WEIGHTS = "model.safetensors"
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"}
TEXT = "a cat on a mat"


def make_open_clip(folder: Path, text: dict[str, Any] | None = None, vision: dict[str, Any] | None = None) -> None:
    """A checkpoint of open_clip's whose tokenizer is in files beside it."""
    visual = {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "head_width": 8}
    words = {"context_length": 10, "vocab_size": 60, "width": 16, "heads": 2, "layers": 1}
    network = randomised(open_clip.CLIP(embed_dim=24, vision_cfg=visual, text_cfg=words))
    torch.save(network.state_dict(), folder / "open_clip_pytorch_model.bin")
    # What its tokenizer is made with; whether code may be run is not for a checkpoint to say.
    words |= {"hf_tokenizer_name": NAME, "tokenizer_kwargs": {"trust_remote_code": True}}
    settings = {"vision_cfg": visual | (vision or {}), "text_cfg": words | (text or {})}
    said = {"model_cfg": {"embed_dim": 24, **settings}, "preprocess_cfg": {}}
    (folder / "open_clip_config.json").write_text(json.dumps(said))
    write_tokenizer(folder)


def change(path: Path, **values: Any) -> None:
    """Other values in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


MAKERS: dict[str, Callable[[Path], object]] = {
    "transformers": lambda folder: make_transformers(folder, "CLIP"),
    "open_clip": make_open_clip,
}


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of one of :data:`MAKERS`, of transformers where a test names none."""
    made = tmp_path / "made"
    made.mkdir()
    MAKERS[getattr(request, "param", "transformers")](made)
    return made


def publish(server: HubServer, folder: Path, *left_out: str) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in left_out}
    server.add(NAME, {**files, "README.md": b"# CLIP", "onnx/vocab.txt": b"a", "evil.py": b"a"})


def names_beside(model: Model) -> set[str]:
    assert model.origin is not None
    return {path.name for path in model.origin.folder.iterdir()}


def logit(model: Model, text: str = TEXT) -> float:
    features = torch.linspace(-1, 1, model.network.config.features)
    return float(open_text_tower(model).target(text).score(features))


@contextmanager
def no_connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked: list[object] = []

    def connect(_: object, address: object) -> None:
        asked.append(address)
        raise OSError

    # Over one that is open already, nobody has to connect.
    close_session()
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        yield
    assert not asked


# From the hub.


@pytest.mark.parametrize("folder", MAKERS, indirect=True)
def test_a_checkpoint_of_the_hub_reads_texts_without_the_network(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(server, folder)
    model = vitviz.load(f"hf:{NAME}")
    assert names_beside(model) == {path.name for path in folder.iterdir()} >= TOKENIZER
    assert reads_text(model)
    with no_connection(monkeypatch):
        found = logit(model)
        assert found == pytest.approx(logit(vitviz.load(folder)), abs=1e-6)
        assert abs(found - logit(model, "dog")) > 1e-3


@pytest.mark.parametrize("left_out", [(), ("tokenizer.json", "merges.txt")], ids=["offline", "at the hub"])
def test_a_checkpoint_without_its_tokenizer_is_refused(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch, left_out: tuple[str, ...]
) -> None:
    publish(server, folder, *left_out)
    if not left_out:
        # As another program may have brought it.
        snapshot_download(NAME, allow_patterns=["config.json", WEIGHTS])
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    expected = r"expected tokenizer\.json or vocab\.json with merges\.txt or spiece\.model or vocab\.txt"
    with pytest.raises(CheckpointError, match=rf"^{NAME}: .*no tokenizer beside its weights; {expected}"):
        open_text_tower(vitviz.load(f"hf:{NAME}"))


# As data.


def test_a_folder_without_a_vocabulary_is_refused(folder: Path) -> None:
    for name in TOKENIZER - {"tokenizer_config.json"}:
        (folder / name).unlink()
    with pytest.raises(
        CheckpointError, match=r"^model: its text tower cannot be opened \(no tokenizer beside its weights"
    ):
        open_text_tower(vitviz.load(folder / WEIGHTS))


@pytest.mark.parametrize("folder", MAKERS, indirect=True)
def test_code_beside_a_checkpoint_is_never_run(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil:\n    pass\n")
    words = {"AutoTokenizer": ["evil.Evil", None]}
    change(folder / "tokenizer_config.json", auto_map=words, tokenizer_class="Evil", trust_remote_code=True)
    if (folder / "config.json").exists():
        change(folder / "config.json", auto_map={"AutoConfig": "evil.Evil", "AutoModel": "evil.Evil"})
    with suppress(CheckpointError):
        open_text_tower(vitviz.load(folder))
    assert not ran.exists()


@pytest.mark.parametrize(
    ("text", "vision"), [({"hf_model_name": "other/words"}, {}), ({}, {"timm_model_name": "hf-hub:other/words"})]
)
def test_a_tower_that_is_described_elsewhere_is_not_fetched(
    text: dict[str, Any], vision: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_open_clip(tmp_path, text, vision)
    # A picture tower of timm's that has open_clip's keys is refused before.
    sentence = r"timm_model_name = '.*other/words'" if vision else r"it is built after '.*other/words', which"
    with no_connection(monkeypatch), pytest.raises(CheckpointError, match=sentence):
        open_text_tower(vitviz.load(tmp_path))


# Uploaded.


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are."""
    made = tmp_path / "scratch"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def test_uploaded_files_read_texts_as_long_as_their_model_lives(folder: Path, tmp_path: Path, scratch: Path) -> None:
    uploaded = apart(folder, tmp_path / "apart")
    model = open_choice(ModelChoice("", uploaded))
    assert reads_text(model)
    assert logit(model) == pytest.approx(logit(vitviz.load(folder)), abs=1e-6)
    assert len(list(scratch.iterdir())) == 1
    del model
    gc.collect()
    assert not list(scratch.iterdir())


def test_an_upload_that_reads_no_text_leaves_nothing(folder: Path, tmp_path: Path, scratch: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config["vision_config"], "model_type": "clip_vision_model"}))
    model = open_choice(ModelChoice("", apart(folder, tmp_path / "apart")))
    assert not reads_text(model) and not list(scratch.iterdir())


def test_an_uploaded_file_alone_reads_no_text(folder: Path, tmp_path: Path) -> None:
    alone = next(file for file in apart(folder, tmp_path / "apart") if file.endswith(WEIGHTS))
    overrides = {"heads": 4, "norm_epsilon": 1e-5, "activation": "quick gelu", "image_size": (32, 32)}
    assert not reads_text(open_choice(ModelChoice("", (alone,), tuple(overrides.items()))))
