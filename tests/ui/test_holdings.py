"""What is kept of visitors is bounded, and nobody's is dropped for what another sends."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

import vitviz
from tests.support.makers import MakeModel
from tests.support.visits import by_visitor, on_loop
from vitviz import Model
from vitviz.analysis.recomputable import kept_bytes
from vitviz.attribution import METHODS
from vitviz.errors.kinds import LimitError
from vitviz.system.strangers import ROW_BYTES
from vitviz.ui.holdings import Bound, Holdings
from vitviz.ui.pictures import Upload
from vitviz.ui.server.explorer_files import PAGE, PICTURE, ExplorerFiles
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService

VISITORS, PICTURES = 40, 9


def kept(found: Holdings[int], *keys: str) -> str:
    return "".join(key for key in keys if found.get(key) is not None)


def test_the_largest_holders_value_used_least_lately_goes_first() -> None:
    dropped: list[int] = []
    found = Holdings[int](Bound(10), "analyses", lambda value: value, dropped.append)
    for key, value, holder in (("a", 2, "anna"), ("b", 3, "ben"), ("c", 4, "ben")):
        found.put(key, value, holder)
    assert found.get("b") == 3
    found.put("d", 3, "carla")
    assert dropped == [4] and found.bound.held.total() == 8 and kept(found, *"abcd") == "abd"
    # The newest stays, however large it is.
    found.put("e", 11, "anna")
    assert kept(found, *"abcde") == "e" and found.bound.held.total() == 11
    found.put("e", 1, "anna")
    found.discard(lambda value: value == 1)
    assert len(found) == found.bound.held.total() == 0


def test_of_equal_holders_the_value_used_least_lately_goes_and_nothing_of_the_app() -> None:
    found = Holdings[int](Bound(6), "maps")
    for key in "xy":
        found.put(key, 0)
    for number in range(4):
        found.put(str(number), number, f"holder {number}")
    found.get("0")
    for number in range(4, 7):
        found.put(str(number), number, f"holder {number}")
    assert kept(found, *"xy0123456") == "xy0456"


def test_stores_share_a_bound_and_what_can_be_computed_again_goes_first() -> None:
    bound, dropped = Bound(10), list[str]()
    kept = Holdings[str](bound, "analyses", lambda _: 3, dropped.append)
    again = Holdings[str](bound, "gradients and matrices of analyses", lambda _: 2, dropped.append, keeps_newest=False)
    for holdings, name, holder in ((kept, "a", "anna"), (kept, "b", "ben"), (again, "again b", "ben")):
        holdings.put(name, name, holder)
    kept.get("b")
    kept.put("c", "c", "carla")
    assert dropped == ["again b"] and bound.held.total() == 9
    again.put("again c", "again c", "carla")
    # It takes the place of nothing that is not made again.
    assert dropped == ["again b", "again c"] and bound.held.total() == 9


def test_a_picture_outlives_its_analyses_for_which_the_page_asks_again() -> None:
    bound = Bound(10 * ROW_BYTES)
    pictures = Holdings[str](bound, "names of pictures")
    analyses = Holdings[str](bound, "analyses", lambda _: 3 * ROW_BYTES)
    for number in range(5):
        pictures.put(number, "mine", "anna")
        analyses.put(number, "mine", "anna")
    assert len(pictures) == 5 and len(analyses) == 1 and 4 in analyses


def test_threads_keep_the_bound() -> None:
    found = Holdings[int](Bound(100), "maps")

    def work(holder: int) -> bool:
        for number in range(300):
            found.put((holder, number), number, str(holder))
        return found.get((holder, 299)) == 299

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))
    assert len(found) == found.bound.held.total() == 100


def test_who_sends_most_takes_from_nobody_else() -> None:
    found = Holdings[str](Bound(10), "maps")
    theirs = [found.key(f"{visitor}'s {number}", visitor) for visitor in ("anna", "ben") for number in range(2)]
    for number in range(1000):
        found.key(f"flood {number}", "mallory")
    assert len(found) == 10 and all(key in found for key in theirs)


def test_the_newest_may_go_itself_where_it_is_too_large() -> None:
    dropped: list[str] = []
    found = Holdings[str](Bound(10), "analyses", lambda _: 3, dropped.append, keeps_newest=False)
    for name, holder in (("a", "anna"), ("b", "anna"), ("c", "anna"), ("d", "ben")):
        found.put(name, name, holder)
    assert dropped == ["a"] and found.bound.held.total() == 9
    for size, gone, total in ((2, "ab", 8), (6, "abd", 3)):
        found.grow("d", size)
        assert dropped == [*gone] and found.bound.held.total() == total
    with pytest.raises(KeyError):
        found.grow("d", 1)


def test_a_key_says_nothing_of_what_others_have() -> None:
    found = Holdings[str](Bound(10), "maps")
    key = found.key("same", "anna")
    assert re.fullmatch(r"[\w-]{22}", key)
    assert found.key("same", "anna") == key != found.key("same", "ben")
    assert Holdings[str](Bound(10), "maps").key("same", "anna") != key
    found.drop(key)
    assert found.get(key) is None


def test_what_nobody_uses_is_dropped_after_a_while(clock: list[float]) -> None:
    dropped: list[str] = []
    found = Holdings[str](Bound(10), "maps", on_drop=dropped.append)
    for name in "ab":
        found.put(name, name, "anna")
    clock[0] += 50
    found.get("a")
    clock[0] += 10
    found.drop_unused(60)
    assert dropped == ["b"]
    clock[0] += 50
    found.drop_unused(60)
    assert dropped == ["b", "a"] and found.bound.held.total() == 0


# ---- what is nobody else's ----


# ---- analyses ----


def test_forty_visitors_keep_their_analyses_in_the_default(bundled: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each visitor looks at nine pictures with two of them at a time, as two views have them."""
    monkeypatch.setattr("vitviz.ui.server.settings.memory", lambda: 6 * 2**30)
    service = AnalysisService(bundled)
    analysis = vitviz.analyze(Image.new("RGB", (900, 600)), bundled)

    async def prepared(*given: object) -> Any:
        return (SimpleNamespace(resolution=None, fit="squash"), None, (900, 600), 0, 0.0), replace(analysis)

    monkeypatch.setattr(service, "_prepared", prepared)
    upload, latest = Upload(Path("mine.png"), "mine.png"), dict[int, list[str]]()

    async def visit() -> None:
        for number in range(PICTURES * VISITORS):
            visitor = number % VISITORS
            with by_visitor(f"10.0.0.{visitor}"):
                uid, _ = await service.analyze(bundled, upload)
            latest[visitor] = [*latest.get(visitor, [])[-1:], uid]
            for each in latest[visitor]:
                # It raises for one that has expired.
                service.cached(each)

    on_loop(visit())
    assert service.memory.held.total() <= service.memory.limit and len(service.cache) < PICTURES * VISITORS
    assert all(service.cache.get(uid) is not None for uids in latest.values() for uid in uids)


def test_one_visitors_analyses_drop_nobody_elses(make_model: MakeModel, picture: Upload) -> None:
    model = make_model()
    size = kept_bytes(vitviz.analyze(picture.path, model))
    service = AnalysisService(model, ServerSettings(cache_bytes=6 * size))

    async def analyze(visitor: int, number: int = 0) -> str:
        with by_visitor(f"10.0.0.{visitor}"):
            return (await service.analyze(model, picture._replace(name=f"{number}.png")))[0]

    mine = on_loop(analyze(1))
    theirs = [on_loop(analyze(2, number)) for number in range(12)]
    assert service.cache.get(mine) is not None
    assert service.cache.get(theirs[-1]) is not None and service.cache.get(theirs[0]) is None


def test_no_analysis_is_so_large_that_everybody_elses_go(make_model: MakeModel, picture: Upload) -> None:
    model = make_model()
    bound = 2 * vitviz.cost(Image.new("RGB", (640, 480)), model).trace_bytes
    alone, shared = (AnalysisService(model, ServerSettings(cache_bytes=bound, shared=each)) for each in (False, True))
    on_loop(shared.analyze(model, picture))
    on_loop(alone.analyze(model, picture, resolution=64))
    with pytest.raises(LimitError, match=r"tokens keeps [\d,]+ bytes; this server keeps at most [\d,]+: choose"):
        on_loop(shared.analyze(model, picture, resolution=64))
    assert len(shared.cache) == len(alone.cache) == 1


def test_what_can_be_computed_again_goes_first(make_model: MakeModel, picture: Upload) -> None:
    model = make_model()
    analysis = vitviz.analyze(picture.path, model)
    size = kept_bytes(analysis)
    # Room for the three analyses, and for what one of them can compute again.
    service = AnalysisService(model, ServerSettings(cache_bytes=3 * size + analysis.nbytes - kept_bytes(analysis)))
    analyses = []
    for number in range(3):
        uid, analysis = on_loop(service.analyze(model, picture._replace(name=f"{number}.png")))
        on_loop(service.heatmap(uid, METHODS["relevance"], {"target": 1}))
        analyses.append(analysis)
    assert [bool(analysis._inputs) for analysis in analyses] == [False, False, True]
    assert len(service.cache) == 3 and service.memory.held.total() <= service.memory.limit
    assert analyses[0].relevance(1).values.isfinite().all()


@pytest.mark.parametrize("name", [PICTURE, PAGE, "layer 0"])
def test_a_file_of_the_explorer_is_made_once_for_all_who_ask(
    service: AnalysisService, picture: Upload, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    uid, _ = on_loop(service.analyze(service.models.start, picture))
    written, write = [], ExplorerFiles._written

    async def count(files: ExplorerFiles, *given: Any) -> Path:
        written.append(name)
        return await write(files, *given)

    monkeypatch.setattr(ExplorerFiles, "_written", count)

    async def ask() -> list[Path]:
        return await asyncio.gather(*(service.file(uid, name) for _ in range(12)))

    [path] = set(on_loop(ask()))
    assert written == [name] and path.stat().st_size > 100
    # One that has left the disk is made again.
    path.unlink()
    assert on_loop(service.file(uid, name)).exists() and len(written) == 2


def test_the_analyses_of_a_model_go_with_it(make_model: MakeModel, picture: Upload, tmp_path: Path) -> None:
    models = [make_model(), make_model()]
    service = AnalysisService(make_model(), ServerSettings(model_bytes=models[0].nbytes))
    keys = []
    for number, model in enumerate(models):
        service.models.page_models.put(number, model)
        keys.append(on_loop(service.analyze(model, picture))[0])
    assert [service.cache.get(key) is not None for key in keys] == [False, True]


def test_defaults_are_shares_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings(memory_bytes=8 * 2**30)
    assert (settings.cache_bytes, settings.model_bytes) == (2**30, 2 * 2**30)
    # The app, what is kept and one picture that is opened must fit.
    settings.check_memory(5 * 2**30)
    with pytest.raises(vitviz.ConfigError, match=r"^VITVIZ_MEMORY_BYTES = 8,589,934,592: expected at least 9,1[\d,]+"):
        settings.check_memory(6 * 2**30)
    with pytest.raises(vitviz.ConfigError, match=r"^VITVIZ_MEMORY_BYTES = '1 MiB': expected "):
        ServerSettings.of({"VITVIZ_MEMORY_BYTES": "1 MiB"})
