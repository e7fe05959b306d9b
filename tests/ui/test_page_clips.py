"""A clip on the page: one frame at a time, and all of them as a video that the server draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

import vitviz
from tests.driver import (
    EXPLORER,
    choose_example,
    choose_method,
    close_menus,
    first_view,
    open_link,
    open_panel,
    settle,
    upload,
)
from tests.support.clips import moving_frames, read_frames, sound_packets, write_clip
from tests.support.visits import on_loop
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import SmallApp, made
from vitviz import Model
from vitviz.analysis.costs import cost_of
from vitviz.analysis.encoder import Encoder
from vitviz.images.preprocessing import PreparedImage
from vitviz.ui.handlers import Handlers
from vitviz.ui.pictures import Upload
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService
from vitviz.worker import Worker

pytestmark = pytest.mark.browser

COUNT = 30


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", frames=moving_frames(COUNT, 320, 240), sound="aac")


def scrub(page: Page, frame: int) -> None:
    page.locator(".vx-clip-frame").fill(str(frame))
    settle(page)


def test_a_clip_is_looked_at_frame_by_frame(cifar_page: Page, cifar: SmallApp, clip: Path) -> None:
    page = cifar_page
    slider = page.locator(".vx-clip-frame")
    expect(slider).to_be_hidden()
    upload(page, clip)
    view = first_view(page)
    assert view["picture"].startswith("picture:") and view["frame"] == 0 and "frame=0" in page.url
    assert slider.get_attribute("max") == str(COUNT - 1)
    library = Library(cifar.model, pictures={view["picture"]: clip})
    check_page(page, library)
    choose_method(page, "rollout")
    for frame in (17, COUNT - 1):
        scrub(page, frame)
        assert first_view(page)["frame"] == frame and f"frame={frame}" in page.url
        expect(page.locator(".vx-frame-said")).to_have_text(f"{frame} of 0–{COUNT - 1}")
        check_page(page, library)
    python = page.evaluate(f"{EXPLORER}.describe().then(({{python}}) => python)")
    assert f'read_frame("clip.mp4", {COUNT - 1})' in python and "from vitviz.video.clips import read_frame" in python
    # What stands in the address is what is opened.
    address = page.url.partition("?")[2]
    open_link(page, f"/?{address}")
    assert first_view(page)["frame"] == COUNT - 1
    check_page(page, library)
    with page.expect_download(timeout=300_000) as download:
        open_panel(page, "save").locator("[data-act=video]").click()
    assert download.value.suggested_filename == "clip-rollout.mp4"
    video = Path(download.value.path())
    assert len(read_frames(video)) == COUNT and len(sound_packets(video)) == len(sound_packets(clip))
    for said in (f"One scale for all {COUNT} frames", "Sound: aac, as it was."):
        expect(page.locator(".vx-said")).to_contain_text(said)
    close_menus(page)
    choose_example(page, "rocket.jpg")
    assert first_view(page)["frame"] is None and "frame" not in page.url
    expect(slider).to_be_hidden()


# What the server does, without a page.


@pytest.fixture
def handlers() -> Handlers:
    return Handlers(AnalysisService(made(32, 32, 0, 4), ServerSettings(clip_seconds=2.0)))


def test_a_link_to_a_frame_that_a_clip_lacks_shows_its_last(handlers: Handlers, clip: Path) -> None:
    picture = handlers.service.pictures.id(Upload(clip, "clip.mp4"))
    link = f"?{picture.replace(':', '=')}&frame=99&method=rollout"
    reply = on_loop(handlers.open_link({"link": link}, lambda _: None))
    assert reply["state"]["views"][0]["frame"] == COUNT - 1
    assert f"Frame 99: this clip has frames 0 to {COUNT - 1}, and the last is shown." in reply["notes"]
    assert reply["views"][0]["clip"] == {"frames": COUNT}
    # A picture has none.
    reply = on_loop(handlers.open_link({"link": "?example=rocket.jpg&frame=3"}, lambda _: None))
    assert reply["state"]["views"][0]["frame"] is None and reply["views"][0]["clip"] is None


def test_a_longer_clip_is_cut_with_a_word(handlers: Handlers, tmp_path: Path) -> None:
    longer = write_clip(tmp_path / "longer.mp4", 25, rate=10)
    picture = handlers.service.pictures.id(Upload(longer, "longer.mp4"))
    reply = on_loop(handlers.open_link({"link": f"?{picture.replace(':', '=')}&method=rollout"}, lambda _: None))
    assert reply["views"][0]["clip"] == {"frames": 20}
    assert "longer.mp4: longer than 2 seconds, of which this is the beginning." in reply["notes"]
    # It is said once, not with every frame.
    link = f"?{picture.replace(':', '=')}&frame=7&method=rollout"
    assert on_loop(handlers.open_link({"link": link}, lambda _: None))["notes"] == []


def test_the_frames_of_a_video_take_no_more_memory_at_once_than_an_analysis(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sizes, encode = made(32, 32, 0, 4), list[int](), Encoder.encode

    def counted(encoder: Encoder, prepared: list[PreparedImage], *options: Any) -> list[vitviz.Analysis]:
        sizes.append(len(prepared))
        return encode(encoder, prepared, *options)

    monkeypatch.setattr(Encoder, "encode", counted)
    config = model.network.config
    nbytes = cost_of(config, config.layout(32, 32)).nbytes
    handlers = Handlers(AnalysisService(model, ServerSettings(analysis_bytes=nbytes)))
    picture = handlers.service.pictures.id(Upload(clip, "clip.mp4"))
    reply = on_loop(handlers.open_link({"link": f"?{picture.replace(':', '=')}&method=rollout"}, lambda _: None))
    request = {"state": reply["state"], "index": 0, "uid": reply["views"][0]["uid"]}
    on_loop(handlers.kinds["film"](request, lambda _: None))
    assert set(sizes) == {1} and len(sizes) > COUNT


def test_a_video_leaves_nothing_but_itself(handlers: Handlers, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradio.utils import get_upload_folder

    picture = handlers.service.pictures.id(Upload(clip, "clip.mp4"))
    reply = on_loop(handlers.open_link({"link": f"?{picture.replace(':', '=')}&method=relevance"}, lambda _: None))
    request = {"state": reply["state"], "index": 0, "uid": reply["views"][0]["uid"]}
    steps: list[str] = []
    found = on_loop(handlers.kinds["film"](request, lambda step: steps.append(str(step))))
    assert (
        len(read_frames(Path(get_upload_folder()).joinpath(*found["address"].split("/")[1:]))) == COUNT
        and len(steps) > 10
    )
    for words, parameters in (
        ("about one class", {"target": {"class": 1, "against": 2}}),
        ("about one class", {"target": {"patch": [1, 1]}}),
    ):
        views = [{**reply["state"]["views"][0], "parameters": parameters}]
        with pytest.raises(vitviz.MethodError, match=words):
            on_loop(handlers.kinds["film"]({**request, "state": {**reply["state"], "views": views}}, lambda _: None))

    class Stopped(Exception):
        pass

    def stop(step: object) -> None:
        if "Drawing" in str(step):
            raise Stopped

    with pytest.raises(Stopped):
        on_loop(handlers.kinds["film"](request, stop))
    assert not list(Path(get_upload_folder()).glob("film-*"))
    still = on_loop(handlers.open_link({"link": "?example=rocket.jpg"}, lambda _: None))
    with pytest.raises(vitviz.ImageError, match="a picture; expected a clip"):
        on_loop(
            handlers.kinds["film"](
                {"state": still["state"], "index": 0, "uid": still["views"][0]["uid"]}, lambda _: None
            )
        )


@pytest.mark.long
def test_without_the_extra_the_answer_says_which_one_is_missing(
    bundled: Model, clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "av.py").write_text("raise ModuleNotFoundError('no av', name='av')")
    monkeypatch.syspath_prepend(tmp_path)
    worker = Worker()
    service = AnalysisService(bundled, worker=worker)
    with pytest.raises(vitviz.ConfigError, match=r"a clip needs av: pip install 'vitviz\[video\]'"):
        on_loop(service.uploaded.clip(Upload(clip, "clip.mp4")))
    worker.close()


def test_the_operator_limits_clips(bundled: Model, clip: Path) -> None:
    for given, words in (
        ({"clip_bytes": 1000}, "at most 1,000 are taken"),
        ({"clip_pixels": 76_799}, "at most 76,799 pixels"),
    ):
        service = AnalysisService(bundled, ServerSettings(**given))  # type: ignore[arg-type]
        with pytest.raises(vitviz.ImageError, match=words):
            on_loop(service.uploaded.clip(Upload(clip, "clip.mp4")))
    settings = ServerSettings.of(
        {"VITVIZ_CLIP_SECONDS": "2.5", "VITVIZ_CLIP_PIXELS": "10", "VITVIZ_CLIP_BYTES": "1 KiB"}
    )
    limits = settings.clip_limits
    assert (limits.seconds, limits.pixels, limits.nbytes, limits.frames) == (2.5, 10, 1024, 150)
    for name, text in (("VITVIZ_CLIP_SECONDS", "0"), ("VITVIZ_CLIP_PIXELS", "many")):
        with pytest.raises(vitviz.ConfigError, match=name):
            ServerSettings.of({name: text})
