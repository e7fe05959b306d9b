"""Hostile files cost little, give a picture or one message, and leave nothing behind, in a process and in the app."""

from __future__ import annotations

import http.client
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, expect

import vitviz
from tests import hostile_files
from tests.driver import expect_map, first_view, notice, upload
from tests.hostile_files import EITHER, FILES, NAMES, PLACES, write
from tests.support import hostile_pieces, image_files
from tests.support.example import ROOT
from tests.support.hostile_pieces import PICTURE
from tests.support.kept import kept_folder
from vitviz import Analysis, Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.errors.kinds import ImageError
from vitviz.errors.messages import legible
from vitviz.images.kinds import EXPECTED

pytestmark = [pytest.mark.hostile, pytest.mark.process]

MOST_SECONDS = 2
MOST_BYTES = 500_000_000
# As large as is opened: each takes about a second. One of them, "largest transparent.png", is opened by every run.
LARGE = (
    *("largest.png", "largest.tif", "largest.jpg", "largest.webp", "coefficients.jpg", "inks.jpg", "more pixels.png"),
    *("no pixels.png", "some fractions.jpg", "some lines.bmp", "twenty scans.jpg", "frame outside.gif"),
)
EVERY = [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in FILES]
GOOD = "good picture.png"
# Audit events that start a program or contact another machine.
ELSEWHERE = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "socket.connect")


# The process that opens all files, one after the other.


def small_model() -> Model:
    torch.manual_seed(0)
    config = ViTConfig(
        image_height=16, image_width=16, patch_height=4, patch_width=4, width=16, depth=2, heads=2, head_width=8,
        mlp_width=16, classes=3,
    )  # fmt: skip
    network = VisionTransformer(config).eval().requires_grad_(False)
    preprocessing = Preprocessing(16, 16, (0.5,) * 3, (0.5,) * 3, "squash")
    return Model("small", network, preprocessing, ("a", "b", "c"))


def peak() -> int:
    """The peak memory of this process in bytes, since :func:`forget_peak` if the system can reset it."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status.read_text())[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def outcome_of(path: Path, model: Model) -> dict[str, Any]:
    """The outcome of a file."""
    try:
        image = vitviz.analyze(path, model).prepared.image
    except ImageError as error:
        return {"message": str(error)}
    quarters = [(image.width * x // 4, image.height * y // 4) for y in (1, 3) for x in (1, 3)]
    return {"size": image.size, "mode": image.mode, "colours": [image.getpixel(place) for place in quarters]}


def try_all(folder: str, names: list[str]) -> None:
    """Print as JSON the outcome of files in a folder, their cost, and their side effects."""
    torch.set_num_threads(1)
    model = small_model()
    good = Path(folder, GOOD)

    def attention() -> bytes:
        return vitviz.analyze(good, model).attention().values.numpy().tobytes()

    expected = attention()
    beside: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in ELSEWHERE or (is_write and arguments[0] != "/proc/self/clear_refs"):
            beside.append(f"{event} {arguments}")

    forget_peak()
    idle = peak()
    sys.addaudithook(watch)
    trials = {}
    for number, name in enumerate(names):
        forget_peak()
        start = time.process_time()
        outcome = outcome_of(Path(folder, name), model)
        seconds, peak_bytes = time.process_time() - start, peak() - idle
        # What disturbs the next picture would disturb the one after nine more.
        is_right = number % 10 != 9 or attention() == expected
        trials[name] = {"seconds": seconds, "bytes": peak_bytes, "next is right": is_right, **outcome}
    assert attention() == expected
    print(json.dumps({"trials": trials, "beside": list(beside)}))


@pytest.fixture(scope="module")
def corpus(request: pytest.FixtureRequest) -> Path:
    """All files, which take seconds to make."""

    def make(folder: Path) -> None:
        write(folder)
        PICTURE.save(folder / GOOD)

    makers = (hostile_files, hostile_pieces, image_files)
    sources = [Path(__file__), *(Path(module.__file__ or "") for module in makers)]
    return kept_folder(request, "hostile-files", sources, ("pillow", "numpy"), make)


def is_about_a_file(item: pytest.Item) -> bool:
    is_here = isinstance(item, pytest.Function) and item.module.__name__ == __name__
    return is_here and "report" in item.fixturenames and hasattr(item, "callspec")


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The output of the process for the files of the tests that are run, and the temporary files that it left."""
    asked = {item.callspec.params["name"] for item in request.session.items if is_about_a_file(item)}
    names = [name for name in (*FILES, *PLACES) if name in asked]
    temporary = tmp_path_factory.mktemp("temporary")
    command = [sys.executable, "-c", f"from {__name__} import try_all; try_all({str(corpus)!r}, {names!r})"]
    environment = {**os.environ, "TMPDIR": str(temporary), "MPLCONFIGDIR": str(tmp_path_factory.mktemp("matplotlib"))}
    # Opening a pipe would wait forever.
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "left": [path.name for path in temporary.rglob("*")]}


# Single files.


@pytest.mark.parametrize("name", EVERY)
def test_a_bad_file_soon_becomes_its_picture_or_one_message(name: str, report: dict[str, Any], corpus: Path) -> None:
    trial, outcome = report["trials"][name], FILES[name].outcome
    check_cost(trial)
    assert outcome == EITHER or ("message" in trial) == (outcome.words is not None), trial
    if "message" in trial:
        assert (outcome.words or "") in trial["message"]
        check_message(trial["message"], name, corpus)
        return
    assert trial["mode"] == "RGB"
    assert outcome.size is None or trial["size"] == list(outcome.size)
    if outcome.is_complete:
        expected = [PICTURE.getpixel(place) for place in ((8, 8), (24, 8), (8, 24), (24, 24))]
        assert np.abs(np.subtract(trial["colours"], expected)).max() <= 12


def check_message(message: str, name: str, folder: Path) -> None:
    assert message.startswith(f"{legible(name)}: ")
    assert message.isprintable(), message
    assert str(folder) not in message
    assert re.search("expected|at most", message)


def check_cost(trial: dict[str, Any]) -> None:
    assert trial["seconds"] < MOST_SECONDS
    assert trial["bytes"] < MOST_BYTES


@pytest.mark.parametrize("name", PLACES)
def test_a_path_that_is_no_file_is_refused_without_waiting(name: str, report: dict[str, Any], corpus: Path) -> None:
    check_cost(report["trials"][name])
    message = report["trials"][name]["message"]
    assert PLACES[name][1] in message
    check_message(message, name, corpus)


def test_after_each_hostile_file_the_next_picture_is_analysed_as_before(report: dict[str, Any]) -> None:
    assert [name for name, trial in report["trials"].items() if not trial["next is right"]] == []


def test_nothing_is_written_and_nothing_else_is_started(report: dict[str, Any]) -> None:
    assert report["beside"] == report["left"] == []


def test_every_run_makes_the_same_files(corpus: Path) -> None:
    quick = [name for name in FILES if (corpus / name).stat().st_size < 100_000]
    assert len(quick) >= 60
    assert [name for name in quick if FILES[name].make() != (corpus / name).read_bytes()] == []


def test_a_link_to_a_picture_is_followed(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to(corpus / GOOD)
    assert np.array_equal(vitviz.open_image(tmp_path / "link.png"), PICTURE)


# Names.


@pytest.mark.parametrize(
    "name", [*NAMES, "../../etc/passwd\n", "\udcff\udcfe.png", "\0.png", "\u061c\u200e\u200f.png", "\ue000.png"]
)
def test_a_name_stays_in_its_line_and_turns_nothing_around(name: str) -> None:
    with pytest.raises(ImageError) as refusal:
        vitviz.open_image(b"", name)
    message = str(refusal.value)
    assert message.isprintable()
    assert message.encode() and message.endswith(f": an empty file; {EXPECTED}")


@pytest.mark.parametrize(
    "name",
    [
        "Bildschirmfoto 2024-05-01 um 9.41.00\u202fAM.png",
        "می\u200cخواهم.jpg",
        "תמונה.jpg",
        "猫\u3000の写真.png",
        "cafe\u0301 [1] it's.jpg",
        "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}\ufe0f.jpg",
        "back\\slash.png",
        "n" * 255,
    ],
)
def test_an_ordinary_name_of_any_language_stays_as_it_is(name: str) -> None:
    with pytest.raises(ImageError) as refusal:
        vitviz.open_image(b"", name)
    assert str(refusal.value).startswith(f"{name}: an empty file")


def test_an_endless_name_does_not_make_an_endless_message() -> None:
    with pytest.raises(ImageError, match=r"^'n+\.\.\.n+': an empty file") as refusal:
        vitviz.open_image(b"", "n" * 10**6)
    assert len(str(refusal.value)) < 1500


# The app.

ESCAPING = (
    "../../../escaped.png",
    "..\\..\\..\\escaped.png",
    "/tmp/escaped.png",
    "....//....//escaped.png",
    "%2e%2e/%2e%2e/escaped.png",
    "..",
    ".",
    "/",
    "a%0Ab\u202e.png",
    "escaped\0.png",
    "<img src=x onerror=alert(1)>.png",
    "n" * 5000 + ".png",
)


def post_upload(address: str, name: str, content: bytes) -> tuple[int, bytes]:
    """Upload a file as a page does, under a name that a browser might not let through."""
    head = f'--edge\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
    connection = http.client.HTTPConnection(address.removeprefix("http://"))
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    connection.request("POST", "/gradio_api/upload", head.encode() + content + b"\r\n--edge--\r\n", headers)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def test_no_name_leads_out_of_the_folder_of_uploads(address: str) -> None:
    content = (ROOT / "assets" / "README.md").read_bytes()
    _, answer = post_upload(address, "plain.png", content)
    [plain] = json.loads(answer)
    folder = Path(plain).resolve().parents[1]
    accepted = 0
    for name in ESCAPING:
        status, answer = post_upload(address, name, content)
        assert b"Traceback" not in answer
        if status != 200:
            continue
        for written in map(Path, json.loads(answer)):
            accepted += 1
            assert written.resolve().parents[1] == folder
            assert not re.search(r"[\0-\x1f\x7f/\\<>]", written.name)
            assert written.read_bytes() == content
    assert accepted >= len(ESCAPING) // 2
    for place in (folder, *list(folder.parents)[:-1], ROOT, Path("/tmp")):
        assert not list(place.glob("*escaped*"))


ODD = "\u202egpj <img src=x onerror=alert(1)> [a](b) *c* `d`.jpg"


def test_a_bad_upload_gets_its_exact_message_and_the_next_picture_is_shown(
    page: Page, bundled: Model, example: Analysis, corpus: Path, tmp_path: Path
) -> None:
    expect_map(page, example.attention())
    before = first_view(page)
    upload(page, {"name": ODD, "mimeType": "image/png", "buffer": (corpus / "bomb.png").read_bytes()})
    message = notice(page)
    expect(message).to_contain_text(f"{legible(ODD)}: ")
    expect(message).to_contain_text(FILES["bomb.png"].outcome.words or "")
    expect(message).not_to_contain_text(re.compile("Traceback|/tmp/|gradio|site-packages|\u202e"))
    expect(message.locator("img, a, em, code")).to_have_count(0)
    assert first_view(page) == before
    good = tmp_path / GOOD
    PICTURE.resize((320, 320)).save(good)
    upload(page, good)
    expect_map(page, vitviz.analyze(good, bundled).attention())
    expect(notice(page)).not_to_be_visible()
