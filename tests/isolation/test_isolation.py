"""Files of strangers are opened in a separate process, with the library's numbers, or ended within its limits."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.support.example import ROOT
from vitviz import Model, isolation, save_checkpoint
from vitviz.errors.kinds import CheckpointError, ImageError
from vitviz.images.colours import gamma_profile
from vitviz.images.preprocessing import BACKENDS, FITS
from vitviz.isolation import Limits, Worker, opening
from vitviz.isolation.jobs import JOBS
from vitviz.isolation.protocol import LENGTH, ChildExited, read_answer
from vitviz.weights.detector import OODDetector
from vitviz.weights.native import write_checkpoint

pytestmark = pytest.mark.process

Make = Callable[..., Model]

SMALL = Limits(memory_bytes=2**30, cpu_seconds=20, wall_seconds=60, answer_bytes=2**20)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker(preload=(__name__,))
    yield worker
    worker.close()


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (61, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


# The same numbers.


@pytest.mark.parametrize("fit", [None, *FITS])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_picture_is_prepared_as_the_library_does(
    worker: Worker, make_model: Make, photo: Path, fit: str | None, backend: str
) -> None:
    preprocessing = replace(make_model().preprocessing, backend=backend, interpolation="bicubic", crop_fraction=0.8)
    with isolation.open_picture(worker, photo, "photo.png") as picture:
        assert (picture.width, picture.height) == (90, 61)
        found = picture.model_input(preprocessing, 4, 4, fit, 120)
    expected = preprocessing.prepare(vitviz.open_image(photo), 4, 4, fit).resized(120)
    assert torch.equal(found.pixels, expected.pixels)
    assert np.array_equal(found.image, expected.image) and found.geometry == expected.geometry


def test_a_heic_photo_is_decoded_as_the_library_does(worker: Worker, make_model: Make) -> None:
    path, preprocessing = ROOT / "tests" / "data" / "display_p3.heic", make_model().preprocessing
    with isolation.open_picture(worker, path, "photo.heic") as picture:
        found = picture.model_input(preprocessing, 4, 4, None, 90)
    expected = preprocessing.prepare(vitviz.open_image(path), 4, 4).resized(90)
    assert torch.equal(found.pixels, expected.pixels) and found.assumptions == expected.assumptions != ()


@pytest.mark.parametrize("format", ["JPEG", "TIFF", "AVIF"])
def test_a_picture_with_a_profile_is_converted_as_the_library_does(
    worker: Worker, make_model: Make, photo: Path, tmp_path: Path, format: str
) -> None:
    wide = gamma_profile(1 / 2.2, (0.3127, 0.329, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06))
    with Image.open(photo) as image:
        image.save(tmp_path / "wide", format, icc_profile=wide)
    preprocessing = make_model().preprocessing
    with isolation.open_picture(worker, tmp_path / "wide", "wide") as picture:
        found = picture.model_input(preprocessing, 4, 4, None, 90)
    expected = preprocessing.prepare(vitviz.open_image(tmp_path / "wide"), 4, 4).resized(90)
    assert torch.equal(found.pixels, expected.pixels)
    assert found.assumptions == expected.assumptions != ()


def test_a_picture_is_written_as_it_is_seen(worker: Worker, photo: Path, tmp_path: Path) -> None:
    with isolation.open_picture(worker, photo, "photo.png") as picture:
        (tmp_path / "again.png").write_bytes(picture.png())
    with Image.open(tmp_path / "again.png") as reopened:
        assert np.array_equal(reopened, vitviz.open_image(photo))


def test_a_checkpoint_is_opened_as_the_library_does(worker: Worker, make_model: Make, tmp_path: Path) -> None:
    model = make_model()
    features = model.network.config.heads * model.network.config.head_width
    detector = OODDetector(torch.randn(features), torch.randn(features, features), 0.5, 8.0, -1.5)
    model = replace(model, card={"accuracy": "high"}, ood_detector=detector)
    save_checkpoint(tmp_path / "small.safetensors", model)
    found = isolation.open_checkpoint(worker, tmp_path / "small.safetensors", 2**30)
    expected = vitviz.load(tmp_path / "small.safetensors")
    assert found.network.config == expected.network.config and found.preprocessing == expected.preprocessing
    fields = ("name", "labels", "card", "assumptions", "origin")
    assert [getattr(found, field) for field in fields] == [getattr(expected, field) for field in fields]
    assert found.ood_detector is not None
    assert torch.equal(found.ood_detector.whitening, detector.whitening) and found.ood_detector.threshold == -1.5
    weights = expected.network.state_dict()
    assert all(torch.equal(tensor, weights[key]) for key, tensor in found.network.state_dict().items())
    assert not any(parameter.requires_grad for parameter in found.network.parameters())


def test_errors_are_those_of_the_library(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(b"<html>")
    with pytest.raises(ImageError) as expected:
        vitviz.open_image(tmp_path / "page.png")
    with pytest.raises(ImageError) as found, isolation.open_picture(worker, tmp_path / "page.png", "page.png"):
        pass
    assert str(found.value) == str(expected.value)
    with pytest.raises(CheckpointError, match=r"^page\.png: .* expected safetensors, a file of torch\.save or npz"):
        isolation.open_checkpoint(worker, tmp_path / "page.png", 2**30)


# Jobs that a file could do if it took over the child. The child imports them by name.


class Stranger:
    """A child that misbehaves in each possible way."""

    def __init__(self) -> None:
        pass

    def spin(self, stream: Any) -> dict[str, Any]:
        while True:
            pass

    def sleep(self, stream: Any) -> dict[str, Any]:
        time.sleep(100)
        return {}

    def allocate(self, stream: Any) -> dict[str, Any]:
        return {"held": len(b"x" * 4 * 2**30)}

    def allocate_tensor(self, stream: Any) -> dict[str, Any]:
        return {"held": torch.zeros(2**30).numel()}

    def crash(self, stream: Any) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return {}

    def be_killed(self, stream: Any) -> dict[str, Any]:
        # As the kernel does to a process when the machine runs out of memory.
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    def leave(self, stream: Any) -> dict[str, Any]:
        os._exit(0)

    def write_much(self, stream: Any) -> dict[str, Any]:
        stream.write(bytes(2**22))
        return {}

    def answer_much(self, stream: Any) -> dict[str, Any]:
        return {"much": "x" * 2**22}

    def forge(self, stream: Any) -> dict[str, Any]:
        raise TypeError("a bug")

    def work(self, stream: Any, number: int) -> dict[str, Any]:
        return {"twice": 2 * number}


@pytest.mark.parametrize(
    ("method", "limits", "words"),
    [
        ("spin", replace(SMALL, cpu_seconds=1), "takes more than 1 seconds of a processor"),
        ("sleep", replace(SMALL, wall_seconds=1.0), "takes more than 1 seconds"),
        ("allocate", SMALL, "takes more than 1,073,741,824 bytes of memory"),
        ("allocate_tensor", SMALL, "takes more than 1,073,741,824 bytes of memory"),
        ("write_much", SMALL, "takes more than 1,073,741,824 bytes of memory"),
        ("crash", SMALL, "gave no answer"),
        ("be_killed", SMALL, "takes more memory than this machine has"),
        ("leave", SMALL, "gave no answer"),
        ("answer_much", SMALL, "gave no answer"),
        ("forge", SMALL, "gave no answer"),
    ],
)
def test_a_job_beyond_its_limits_is_one_sentence_and_leaves_nothing(
    worker: Worker, method: str, limits: Limits, words: str
) -> None:
    start = time.process_time()
    with (
        pytest.raises(ImageError, match=rf"^file\.png: .*{words}.*; expected"),
        worker.job("Stranger", {}, limits, ImageError, "file.png") as job,
    ):
        job.call(method)
    assert time.process_time() - start < 1
    # The next job is served.
    with worker.job("Stranger", {}, SMALL, ImageError, "file.png") as job:
        assert [job.call("work", number=number) for number in (1, 2)] == [{"twice": 2}, {"twice": 4}]


def test_the_end_of_a_job_ends_its_process(worker: Worker) -> None:
    with worker.job("Stranger", {}, SMALL, ImageError, "file.png") as job:
        job.call("work", number=1)
        fork_server = worker._fork_server
        assert fork_server is not None
        # The child of the previous job may not have ended yet.
        _until(lambda: len(_children(fork_server[0].pid)) == 1)
    _until(lambda: _children(fork_server[0].pid) == [])


def test_a_fork_server_that_is_gone_is_started_anew_and_ends_with_its_worker() -> None:
    worker = Worker()
    worker.start()
    assert worker._fork_server is not None
    first = worker._fork_server[0]
    first.kill()
    first.wait()
    with pytest.raises(ImageError), isolation.open_picture(worker, Path("gone.png"), "gone.png"):
        pass
    second = worker._fork_server[0]
    assert second.pid != first.pid and second.poll() is None
    worker.close()
    assert second.poll() is not None


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()]


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01",
        LENGTH.pack(3) + b"{}",
        LENGTH.pack(2**63) + b"{}",
        LENGTH.pack(2**40) + b"{}",
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(4) + b"null",
        LENGTH.pack(200_000) + b"[" * 200_000,
        LENGTH.pack(len(pickle.dumps({}))) + pickle.dumps({}),
    ],
)
def test_a_malformed_answer_of_a_child_ends_it(content: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(5)
        theirs.sendall(content)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ChildExited):
            read_answer(ours)


class Liar:
    """Answers like a child that opens checkpoints, with the folder of another file."""

    def __init__(self, path: Path) -> None:
        self.model = vitviz.load(path)

    def write(self, stream: Any) -> dict[str, Any]:
        write_checkpoint(stream, self.model)
        return {"name": "small", "assumptions": [], "folder": "/"}


def test_an_origin_elsewhere_is_not_believed(worker: Worker, make_model: Make, tmp_path: Path) -> None:
    path = tmp_path / "own.safetensors"
    save_checkpoint(path, make_model())
    assert opening._model(worker, "Liar", {"path": path}, "small", tmp_path, 2**30).origin is None


def _offer() -> None:
    JOBS.update(Stranger=Stranger, Liar=Liar)


_offer()
