"""A hostile file becomes a picture or one message of a child within its limits, and nothing else notices it."""

from __future__ import annotations

import gc
import http.client
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect

import vitviz
from tests.driver import expect_map, first_view, notice, show_default, upload
from tests.hostile_files import EITHER, FILES, NAMES, PLACES
from tests.support.example import ROOT
from tests.support.hostile_pieces import PICTURE
from tests.support.long_runs import check_drawn, share_of
from tests.support.random_files import changed_pictures
from vitviz import Analysis, Model
from vitviz.errors.kinds import ImageError
from vitviz.errors.messages import legible
from vitviz.images import isolated_pictures
from vitviz.images.file_kinds import EXPECTED
from vitviz.images.opening import opened_file
from vitviz.worker import Limits, check_limits, shared_worker

pytestmark = [pytest.mark.hostile, pytest.mark.process]

GOOD = "good picture.png"
# One of each kind; all others are read by the long run.
ONE_OF_EACH = (
    *("zero.jpg", "drawing.jpg", "cut.png", "flipped.jpg", "trailing.gif", "dot.png", "bomb.png", "bomb.jpg"),
    *("nothing in it.png", "largest transparent.png", "canvases.webp", "scans.jpg", "comments.gif", "text bomb.png"),
    *(
        "fractions.jpg",
        "loop.tif",
        "tags.tif",
        "profiles.png",
        "twelve bits.jpg",
        "picture and archive.jpg",
        "pages.tif",
    ),
)
EVERY = [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.long) for name in FILES]
# A child gets a second of a processor, since it is the limits that end what is hostile. short: either end is right.
LIMITS = replace(isolated_pictures.LIMITS, cpu_seconds=1)


@pytest.fixture(scope="module", autouse=True)
def started() -> None:
    check_limits(shared_worker())


def opened(path: Path, limits: Limits = LIMITS) -> Image.Image | str:
    """The picture of a file that a child has read, or the message."""
    reader = f"{isolated_pictures.__name__}:read_picture"
    try:
        with isolated_pictures.decoded_by(
            shared_worker(), reader, opened_file(path, legible(path.name)), (path.name,), path.name, limits
        ) as picture:
            return Image.open(io.BytesIO(picture.png()))
    except ImageError as error:
        return str(error)


# Single files.


@pytest.mark.parametrize("name", EVERY)
def test_a_bad_file_becomes_its_picture_or_one_message(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name].make())
    PICTURE.save(tmp_path / GOOD)
    # What earlier tests left is not closed meanwhile.
    gc.collect()
    outcome, descriptors = FILES[name].outcome, len(os.listdir("/dev/fd"))
    # The largest honest pictures take longer, on a busy machine too.
    limits = LIMITS if outcome == EITHER else isolated_pictures.LIMITS
    found = opened(tmp_path / name, limits)
    assert outcome == EITHER or isinstance(found, str) == (outcome.words is not None), found
    if isinstance(found, str):
        assert (outcome.words or "") in found and "gave no answer" not in found
        check_message(found, name, tmp_path)
    else:
        assert outcome.size is None or found.size == outcome.size
        if outcome.is_complete:
            places = [(found.width * x // 4, found.height * y // 4) for y in (1, 3) for x in (1, 3)]
            expected = [PICTURE.getpixel(place) for place in ((8, 8), (24, 8), (8, 24), (24, 24))]
            assert np.abs(np.subtract([found.getpixel(place) for place in places], expected)).max() <= 12
    # The next one is read as before.
    assert np.array_equal(opened(tmp_path / GOOD, isolated_pictures.LIMITS), PICTURE)
    assert len(os.listdir("/dev/fd")) <= descriptors


def check_message(message: str, name: str, folder: Path) -> None:
    assert message.startswith(f"{legible(name)}: ")
    assert message.isprintable(), message
    assert str(folder) not in message
    assert re.search("expected|at most", message)


@pytest.mark.parametrize("count", [7, pytest.param(share_of(5_000), marks=pytest.mark.long)])
def test_a_picture_after_random_changes_is_a_picture_or_one_message(count: int, tmp_path: Path) -> None:
    def check(picture: tuple[str, bytes]) -> None:
        name, content = picture
        (tmp_path / name).write_bytes(content)
        found = opened(tmp_path / name)
        if isinstance(found, str):
            assert "gave no answer" not in found
            check_message(found, name, tmp_path)

    check_drawn(changed_pictures(), count, check)


@pytest.mark.parametrize("name", PLACES)
def test_a_path_that_is_no_file_is_refused_without_waiting(name: str, tmp_path: Path) -> None:
    create, words = PLACES[name]
    create(tmp_path / name)
    message = opened(tmp_path / name)
    assert isinstance(message, str) and words in message
    # It may name its folder, since no visitor names a path.
    check_message(message.replace(str(tmp_path), ""), name, tmp_path)


def test_a_link_to_a_picture_is_followed(tmp_path: Path) -> None:
    PICTURE.save(tmp_path / GOOD)
    (tmp_path / "link.png").symlink_to(tmp_path / GOOD)
    assert np.array_equal(vitviz.open_image(tmp_path / "link.png"), PICTURE)


# Names.

ORDINARY = (
    *("Bildschirmfoto 2024-05-01 um 9.41.00\u202fAM.png", "می\u200cخواهم.jpg", "תמונה.jpg", "猫\u3000の写真.png"),
    *("cafe\u0301 [1] it's.jpg", "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}\ufe0f.jpg", "back\\slash.png", "n" * 255),
)
ODD_NAMES = (*("../../etc/passwd\n", "\udcff\udcfe.png", "\0.png", "\u061c\u200e\u200f.png", "\ue000.png"), "n" * 10**6)


@pytest.mark.parametrize("name", [*NAMES, *ODD_NAMES, *ORDINARY], ids=lambda name: ascii(name)[:30])
def test_a_name_stays_in_its_line_and_an_ordinary_one_as_it_is(name: str) -> None:
    with pytest.raises(ImageError) as refusal:
        vitviz.open_image(b"", name)
    message = str(refusal.value)
    assert message.encode() and len(message) < 1500
    assert message.isprintable() or name in ORDINARY
    assert message.endswith(f": an empty file; {EXPECTED}")
    assert message.startswith(f"{name}: ") or name not in ORDINARY


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
    page: Page, bundled: Model, example: Analysis, tmp_path: Path
) -> None:
    expect_map(page, example.attention())
    before = first_view(page)
    upload(page, {"name": ODD, "mimeType": "image/png", "buffer": FILES["bomb.png"].make()})
    message = notice(page)
    expect(message).to_contain_text(f"{legible(ODD)}: ")
    expect(message).to_contain_text(FILES["bomb.png"].outcome.words or "")
    expect(message).not_to_contain_text(re.compile("Traceback|/tmp/|gradio|site-packages|\u202e"))
    expect(message.locator("img, a, em, code")).to_have_count(0)
    assert first_view(page) == before
    good = tmp_path / GOOD
    PICTURE.resize((320, 320)).save(good)
    upload(page, good)
    show_default(page)
    expect_map(page, vitviz.analyze(good, bundled).attention())
    expect(notice(page)).not_to_be_visible()
