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
from vitviz import Analysis, Model
from vitviz.analysis.recomputable import kept_bytes
from vitviz.attribution import METHODS
from vitviz.ui.holdings import Holdings
from vitviz.ui.pictures import Upload
from vitviz.ui.server.explorer_files import PAGE, PICTURE, ExplorerFiles
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import MAX_LATEST, AnalysisService

VISITORS, PICTURES = 40, 9


def kept(found: Holdings[int], *keys: str) -> str:
    return "".join(key for key in keys if found.get(key) is not None)


def test_the_largest_holders_value_used_least_lately_goes_first() -> None:
    dropped: list[int] = []
    found = Holdings[int](10, lambda value: value, dropped.append)
    for key, value, holder in (("a", 2, "anna"), ("b", 3, "ben"), ("c", 4, "ben")):
        found.put(key, value, holder)
    assert found.get("b") == 3
    found.put("d", 3, "carla")
    assert dropped == [4] and found.total == 8 and kept(found, *"abcd") == "abd"
    # The newest stays, however large it is.
    found.put("e", 11, "anna")
    assert kept(found, *"abcde") == "e" and found.total == 11
    found.put("e", 1, "anna")
    found.discard(lambda value: value == 1)
    assert len(found) == found.total == 0


def test_of_equal_holders_the_value_used_least_lately_goes() -> None:
    found = Holdings[int](4)
    for number in range(4):
        found.put(str(number), number, f"holder {number}")
    found.get("0")
    for number in range(4, 7):
        found.put(str(number), number, f"holder {number}")
    assert kept(found, *"0123456") == "0456"


def test_threads_keep_the_bound() -> None:
    found = Holdings[int](100)

    def work(holder: int) -> bool:
        for number in range(300):
            found.put((holder, number), number, str(holder))
        return found.get((holder, 299)) == 299

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))
    assert len(found) == found.total == 100


def test_who_sends_most_takes_from_nobody_else() -> None:
    found = Holdings[str](10)
    theirs = [found.key(f"{visitor}'s {number}", visitor) for visitor in ("anna", "ben") for number in range(2)]
    for number in range(1000):
        found.key(f"flood {number}", "mallory")
    assert len(found) == 10 and all(key in found for key in theirs)


def test_the_newest_may_go_itself_where_it_is_too_large() -> None:
    dropped: list[str] = []
    found = Holdings[str](10, lambda _: 3, dropped.append, keeps_newest=False)
    for name, holder in (("a", "anna"), ("b", "anna"), ("c", "anna"), ("d", "ben")):
        found.put(name, name, holder)
    assert dropped == ["a"] and found.total == 9
    for size, gone, total in ((2, "ab", 8), (6, "abd", 3)):
        found.grow("d", size)
        assert dropped == [*gone] and found.total == total
    with pytest.raises(KeyError):
        found.grow("d", 1)


def test_a_key_says_nothing_of_what_others_have() -> None:
    found = Holdings[str](10)
    key = found.key("same", "anna")
    assert re.fullmatch(r"[\w-]{22}", key)
    assert found.key("same", "anna") == key != found.key("same", "ben")
    assert Holdings[str](10).key("same", "anna") != key
    found.drop(key)
    assert found.get(key) is None


def test_what_nobody_uses_is_dropped_after_a_while(clock: list[float]) -> None:
    dropped: list[str] = []
    found = Holdings[str](10, on_drop=dropped.append)
    for name in "ab":
        found.put(name, name, "anna")
    clock[0] += 50
    found.get("a")
    clock[0] += 10
    found.drop_unused(60)
    assert dropped == ["b"]
    clock[0] += 50
    found.drop_unused(60)
    assert dropped == ["b", "a"] and found.total == 0


# ---- what is nobody else's ----


# ---- analyses ----


def test_forty_visitors_keep_their_analyses_in_the_default(bundled: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each visitor looks at nine pictures with two of them at a time, as two views have them."""
    monkeypatch.setattr("vitviz.ui.server.settings.memory", lambda: 6 * 2**30)
    service = AnalysisService(bundled)
    analysis = vitviz.analyze(Image.new("RGB", (900, 600)), bundled)

    async def prepared(*given: object) -> Any:
        return SimpleNamespace(resolution=None, fit="squash"), None, (900, 600), 0, 0.0

    monkeypatch.setattr(service, "_prepared", prepared)
    monkeypatch.setattr("vitviz.ui.service._encoded", lambda *given: replace(analysis))
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
    assert service.cache.total <= service.cache.limit and len(service.cache) < PICTURES * VISITORS
    assert all(service.cache.get(uid) is not None for uids in latest.values() for uid in uids)


def test_one_visitors_analyses_drop_nobody_elses(make_model: MakeModel, picture: Upload) -> None:
    model = make_model()
    size = kept_bytes(vitviz.analyze(picture.path, model)) + 3 * 900 * 540
    service = AnalysisService(model, ServerSettings(cache_bytes=6 * size))

    async def analyze(visitor: int) -> str:
        with by_visitor(f"10.0.0.{visitor}"):
            return (await service.analyze(model, picture))[0]

    mine = on_loop(analyze(1))
    theirs = [on_loop(analyze(2)) for _ in range(12)]
    assert service.cache.get(mine) is not None
    assert service.cache.get(theirs[-1]) is not None and service.cache.get(theirs[0]) is None


def test_what_can_be_computed_again_is_held_by_the_latest_only(make_model: MakeModel, picture: Upload) -> None:
    service = AnalysisService(make_model())

    def held(analysis: Analysis) -> bool:
        return bool(analysis._inputs)

    analyses = []
    for _ in range(MAX_LATEST + 2):
        uid, analysis = on_loop(service.analyze(service.start, picture))
        on_loop(service.heatmap(uid, METHODS["relevance"], {"target": 1}))
        analyses.append(analysis)
    assert list(map(held, analyses)) == [False] * 2 + [True] * MAX_LATEST
    before = analyses[0].relevance(1).values
    assert kept_bytes(analyses[0]) < analyses[0].nbytes and before.isfinite().all()
    assert service.cache.total == sum(map(kept_bytes, analyses))


@pytest.mark.parametrize("name", [PICTURE, PAGE, "layer 0"])
def test_a_file_of_the_explorer_is_made_once_for_all_who_ask(
    service: AnalysisService, picture: Upload, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    uid, _ = on_loop(service.analyze(service.start, picture))
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
        service.models.kept.put(number, model)
        keys.append(on_loop(service.analyze(model, picture))[0])
    assert [service.cache.get(key) is not None for key in keys] == [False, True]


def test_defaults_are_shares_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ServerSettings(memory_bytes=8 * 2**30)
    assert (settings.kept_analysis_bytes, settings.kept_model_bytes) == (2**30, 2 * 2**30)
    with pytest.raises(vitviz.ConfigError, match=r"^VITVIZ_MEMORY_BYTES = 1,000: expected at least [\d,]+$"):
        _ = ServerSettings(memory_bytes=1000).app_bytes
