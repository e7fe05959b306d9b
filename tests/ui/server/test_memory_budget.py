"""A server gives its memory out in shares: what does not fit waits, has what is kept give way, or is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitviz import Analysis, Model
from vitviz.errors.kinds import ConfigError, LimitError
from vitviz.ui.inputs import InputSettings
from vitviz.ui.pictures import Upload
from vitviz.ui.server.budget import RESERVED_BYTES, MemoryBudget
from vitviz.ui.server.decoding import UploadedPictures
from vitviz.ui.server.explorer_files import PAGE, PICTURE
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.service import AnalysisService

Make = Callable[..., Model]


class Shelf:
    """What is kept, in one piece after the other."""

    def __init__(self, *pieces: int) -> None:
        self.pieces = list(pieces)

    @property
    def nbytes(self) -> int:
        return sum(self.pieces)

    def make_room(self, nbytes: int) -> None:
        target = self.nbytes - nbytes
        while self.pieces and self.nbytes > target:
            self.pieces.pop(0)


def test_shares_are_taken_and_given_back() -> None:
    budget = MemoryBudget(100)
    with budget.share(60, "one"), budget.share(40, "two"):
        assert budget.nbytes == 100
    assert (budget.nbytes, budget.peak_bytes) == (0, 100)
    with pytest.raises(RuntimeError), budget.share(70, "three"):
        raise RuntimeError
    assert budget.nbytes == 0


def test_what_is_kept_gives_way_in_order_and_no_more_than_needed() -> None:
    first, second = Shelf(10, 20, 30), Shelf(25)
    budget = MemoryBudget(100, [first, second], patience=0)
    with budget.share(30, "one"):
        assert (first.pieces, second.pieces) == ([30], [25])
        with budget.share(40, "two"):
            assert (first.pieces, second.pieces) == ([], [25])
        with budget.share(70, "three"):
            assert (first.pieces, second.pieces) == ([], [])


def test_what_is_kept_stays_where_others_give_back_soon() -> None:
    shelf = Shelf(30)
    budget, asked = MemoryBudget(100, [shelf], patience=300), threading.Event()

    def take() -> list[int]:
        with budget.share(50, "two", asked.set):
            return list(shelf.pieces)

    with ThreadPoolExecutor() as threads:
        with budget.share(60, "one"):
            second = threads.submit(take)
            assert asked.wait(30) and shelf.pieces == [30]
        assert second.result(30) == [30]
        # Beside what is kept there never would be room.
        with budget.share(80, "three"):
            assert not shelf.pieces


def test_what_never_fits_is_refused_at_once() -> None:
    budget = MemoryBudget(100)
    words = "^this page needs 101 bytes of memory; this server gives at most 100$"
    with budget.share(50, "one"), pytest.raises(LimitError, match=words), budget.share(101, "this page"):
        pass


@pytest.mark.slow
def test_who_waits_comes_in_order_and_may_give_up() -> None:
    budget, order = MemoryBudget(100), list[int]()
    asked = threading.Event()

    def take(number: int, nbytes: int) -> None:
        with budget.share(nbytes, str(number), asked.set):
            order.append(number)

    class GivesUp(Exception):
        pass

    def give_up() -> None:
        raise GivesUp

    with ThreadPoolExecutor() as threads:
        with budget.share(80, "first"):
            large = threads.submit(take, 1, 90)
            assert asked.wait(30)
            # It would fit, but the other came before.
            small = threads.submit(take, 2, 10)
            with pytest.raises(GivesUp), budget.share(5, "third", give_up):
                pass
            assert not order
        large.result(30), small.result(30)
    assert order == [1, 2] and budget.nbytes == 0


def test_many_at_once_never_take_more_than_there_is() -> None:
    budget, sizes = MemoryBudget(1000), np.random.default_rng(0).integers(1, 400, 60)
    taken: list[int] = []

    def take(nbytes: int) -> None:
        with budget.share(nbytes, "one"):
            taken.append(budget.nbytes)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(take, sizes.tolist()))
    assert len(taken) == 60 and max(taken) <= 1000 and budget.nbytes == 0


# In the app.


@pytest.fixture
def upload(tmp_path: Path) -> Upload:
    noise = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    return Upload(tmp_path / "noise.png", "noise.png")


def bench_of(model: Model, **server_settings: int) -> AnalysisService:
    return AnalysisService(model, ServerSettings(**server_settings))


def test_a_server_with_too_little_memory_does_not_start(make_model: Make) -> None:
    with pytest.raises(ConfigError, match=r"^VITVIZ_MEMORY_BYTES = 1,000: expected at least [\d,]+ with this model$"):
        bench_of(make_model(), memory_bytes=1000)


def test_an_analysis_takes_its_share_and_is_counted_while_it_is_kept(make_model: Make, upload: Upload) -> None:
    bench = bench_of(make_model())
    _, analysis = bench.analyze(bench.start, upload, InputSettings("squash"))
    assert bench.budget.peak_bytes >= bench.budget.nbytes == bench.cache.nbytes == analysis.nbytes > 0


def test_an_analysis_beyond_the_memory_is_refused_and_leaves_nothing(make_model: Make, upload: Upload) -> None:
    bench = bench_of(make_model(), memory_bytes=RESERVED_BYTES + 2**29)
    bench.budget.max_bytes = 1000
    with pytest.raises(LimitError, match=r"this analysis needs [\d,]+ bytes of memory; .* at most 1,000$"):
        bench.analyze(bench.start, upload, InputSettings("squash"))
    assert bench.budget.nbytes == 0 and not len(bench.small) and not len(bench.cache)


def test_older_analyses_give_way_to_a_new_one(make_model: Make, upload: Upload) -> None:
    bench = bench_of(make_model())
    first, _ = bench.analyze(bench.start, upload, InputSettings("squash"))
    bench.budget.max_bytes = bench.budget.peak_bytes + bench.cache.nbytes // 2
    second, _ = bench.analyze(bench.start, upload, InputSettings("squash"))
    assert bench.cache.get(first) is None and bench.cache.get(second) is not None


@pytest.mark.parametrize("name", [PICTURE, PAGE, "layer 0"])
def test_a_file_of_the_explorer_is_made_once_for_all_who_ask(
    make_model: Make, upload: Upload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    bench = bench_of(make_model())
    key, _ = bench.analyze(bench.start, upload, InputSettings("squash"))
    lock = bench.explorer_files._locks.get(name, bench.explorer_files.lock)
    opened, made, whole = list[str](), list[str](), bench.explorer_files.content
    within: list[int] = []
    decode = UploadedPictures._open

    def count(analysis: Analysis, name: str, *about: Any) -> bytes:
        within.append(len(lock))
        made.append(name)
        return whole(analysis, name, *about)

    monkeypatch.setattr(bench.explorer_files, "content", count)
    monkeypatch.setattr(UploadedPictures, "_open", lambda *given: opened.append(name) or decode(*given))
    with ThreadPoolExecutor(12) as threads:
        paths = set(threads.map(lambda _: bench.file(key, name), range(12)))
    assert len(paths) == 1 and made == [name] and len(opened) == (name == PICTURE)
    # In its turn: all others waited.
    assert within and within[0] >= 1 and not len(lock)
    [path] = paths
    assert path.stat().st_size > 100
    # One that has left the disk is made again.
    path.unlink()
    assert bench.file(key, name).exists()


def test_the_whole_of_the_machine_is_not_asked_for(make_model: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.ui.server.budget.memory", lambda: 8 * 2**30)
    assert bench_of(make_model()).budget.max_bytes < 0.75 * 8 * 2**30 - RESERVED_BYTES
