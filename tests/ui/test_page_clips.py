"""A clip on the page: one frame at a time, and all of them as a video that the server draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gradio.utils import get_upload_folder
from playwright.sync_api import Page, expect

import vitviz
from tests.driver import EXPLORER, choose_example, choose_method, close_menus, first_view, open_link, saved, upload
from tests.support.clips import moving_frames, read_frames, sound_packets, write_clip
from tests.support.example import EXAMPLE
from tests.support.visits import on_loop
from tests.ui.answers import Library, check_page
from tests.ui.explorer.page_driver import SmallApp, made
from vitviz import Model
from vitviz.analysis.costs import cost_of
from vitviz.analysis.encoder import Encoder
from vitviz.images.preprocessing import PreparedImage
from vitviz.ui.handlers import Handlers
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import RunEnded
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService
from vitviz.worker import Worker

pytestmark = pytest.mark.browser

COUNT = 30


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "clip.mp4", frames=moving_frames(COUNT, 320, 240), sound="aac")


def test_a_clip_is_looked_at_frame_by_frame(cifar_page: Page, cifar: SmallApp, clip: Path) -> None:
    page = cifar_page
    slider = page.locator(".vx-clip-frame")
    expect(slider).to_be_hidden()
    upload(page, clip)
    expect(slider).to_have_attribute("max", str(COUNT - 1))
    library = Library(cifar.model, pictures={first_view(page)["picture"]: clip})
    choose_method(page, "rollout")
    for frame in (0, 17, COUNT - 1):
        slider.fill(str(frame))
        check_page(page, library)
        assert first_view(page)["frame"] == frame and f"frame={frame}" in page.url
        expect(page.locator(".vx-frame-said")).to_have_text(f"{frame} of 0–{COUNT - 1}")
    python = page.evaluate(f"{EXPLORER}.describe().then(({{python}}) => python)")
    assert f'read_frame("clip.mp4", {COUNT - 1})' in python and "from vitviz.video.clips import read_frame" in python
    # What stands in the address is what is opened.
    open_link(page, page.url)
    assert first_view(page)["frame"] == COUNT - 1
    check_page(page, library)
    video = saved(page, "video")
    assert video.name == "clip-rollout.mp4"
    assert len(read_frames(video)) == COUNT and len(sound_packets(video)) == len(sound_packets(clip))
    for said in (f"One scale for all {COUNT} frames", "Sound: aac, as it was."):
        expect(page.locator(".vx-said")).to_contain_text(said)
    close_menus(page)
    choose_example(page, "rocket.jpg")
    assert first_view(page)["frame"] is None and "frame" not in page.url
    expect(slider).to_be_hidden()


# What the server does, without a page.


class Clips:
    """The handlers of a server, and what a page asks them about a clip."""

    def __init__(self, **settings: Any) -> None:
        self.handlers = Handlers(AnalysisService(made(32, 32, 0, 4), ServerSettings(**settings)))

    def open(self, path: Path, words: str = "method=rollout") -> dict[str, Any]:
        """The reply about a link to an uploaded clip."""
        picture = self.handlers.service.pictures.id(Upload(path, path.name))
        link = f"?{picture.replace(':', '=')}&{words}"
        reply: dict[str, Any] = on_loop(self.handlers.open_link({"link": link}, lambda _: None))
        return reply

    def film(self, reply: dict[str, Any], report: Callable[[Any], None] = lambda _: None, **changes: Any) -> Path:
        """The video of what a reply shows, with changes of its view."""
        state = {**reply["state"], "views": [{**reply["state"]["views"][0], **changes}]}
        request = {"state": state, "index": 0, "uid": reply["views"][0]["uid"]}
        made = on_loop(self.handlers.kinds["film"](request, report))
        return Path(get_upload_folder()).joinpath(*made["address"].split("/")[1:])


def test_a_link_to_a_frame_that_a_clip_lacks_shows_its_last(clip: Path) -> None:
    reply = Clips().open(clip, "frame=99&method=rollout")
    assert reply["state"]["views"][0]["frame"] == COUNT - 1
    assert f"Frame 99: this clip has frames 0 to {COUNT - 1}, and the last is shown." in reply["notes"]
    assert reply["views"][0]["clip"] == {"frames": COUNT}
    # A picture has none.
    reply = Clips().open(EXAMPLE, "frame=3")
    assert reply["state"]["views"][0]["frame"] is None and reply["views"][0]["clip"] is None


def test_a_longer_clip_is_cut_with_a_word(tmp_path: Path) -> None:
    clips, longer = Clips(clip_seconds=2.0), write_clip(tmp_path / "longer.mp4", 25, rate=10)
    reply = clips.open(longer)
    assert reply["views"][0]["clip"] == {"frames": 20}
    assert "longer.mp4: longer than 2 seconds, of which this is the beginning." in reply["notes"]
    # It is said once, not with every frame.
    assert clips.open(longer, "frame=7&method=rollout")["notes"] == []


def test_the_frames_of_a_video_take_no_more_memory_at_once_than_an_analysis(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, sizes, encode = made(32, 32, 0, 4).network.config, list[int](), Encoder.encode

    def counted(encoder: Encoder, prepared: list[PreparedImage], *options: Any) -> list[vitviz.Analysis]:
        sizes.append(len(prepared))
        return encode(encoder, prepared, *options)

    monkeypatch.setattr(Encoder, "encode", counted)
    clips = Clips(analysis_bytes=cost_of(config, config.layout(32, 32)).nbytes)
    clips.film(clips.open(clip))
    assert set(sizes) == {1} and len(sizes) > COUNT


def test_a_video_leaves_nothing_but_itself(clip: Path) -> None:
    clips, steps = Clips(), list[str]()
    reply = clips.open(clip, "method=relevance")
    film = clips.film(reply, lambda step: steps.append(str(step)))
    assert len(read_frames(film)) == COUNT and len(steps) > 10
    for target in ({"class": 1, "against": 2}, {"patch": [1, 1]}):
        with pytest.raises(vitviz.MethodError, match="about one class"):
            clips.film(reply, parameters={"target": target})

    def stop(step: object) -> None:
        if "Drawing" in str(step):
            raise RunEnded

    with pytest.raises(RunEnded):
        clips.film(reply, stop)
    assert not list(Path(get_upload_folder()).glob("film-*"))
    with pytest.raises(vitviz.ImageError, match="a picture; expected a clip"):
        clips.film(clips.open(EXAMPLE))


@pytest.mark.long
def test_without_the_extra_the_answer_says_which_one_is_missing(bundled: Model, clip: Path) -> None:
    worker = Worker()
    worker.preload = ("tests.worker.misbehaviour:forget_av", *worker.preload)
    service = AnalysisService(bundled, worker=worker)
    with pytest.raises(vitviz.ImageError, match=r"a clip needs av: pip install 'av>=17'"):
        on_loop(service.uploaded.clip(Upload(clip, "clip.mp4")))
    worker.close()


def test_the_operator_limits_clips() -> None:
    limits = ServerSettings(clip_seconds=2.5, clip_pixels=10, clip_bytes=1024).clip_limits
    assert (limits.seconds, limits.pixels, limits.nbytes, limits.frames) == (2.5, 10, 1024, 150)
