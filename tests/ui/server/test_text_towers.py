"""Text towers are opened once, counted, and closed where others need the room."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from pathlib import Path
from weakref import ref

import pytest
import torch

import vitviz
import vitviz.ui.server.text_towers
from tests.support.visits import on_loop
from tests.support.waiting import wait_until
from tests.towers import make_transformers
from vitviz import Model
from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.models.targets import Target
from vitviz.ui.server.settings import ServerSettings
from vitviz.ui.server.text_towers import TextTowers, tower_bytes
from vitviz.ui.service import AnalysisService
from vitviz.weights.text_tower import open_text_tower
from vitviz.worker import Worker

pytestmark = [pytest.mark.parity, pytest.mark.process]
TOWER_MODULES = (
    "transformers.models.clip.modeling_clip",
    "transformers.models.clip.tokenization_clip",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)
linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux lists a process's children")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    found = []
    for number in range(2):
        torch.manual_seed(number)
        folder = tmp_path_factory.mktemp("tower")
        make_transformers(folder, "CLIP")
        found.append(vitviz.load(folder))
    return found


@pytest.fixture
def plain_worker() -> Iterator[Worker]:
    """Whose towers share nothing that each of them takes in the app."""
    found = Worker(("tests.torchvision_names",))
    yield found
    found.close()


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    # Imports what every tower needs, which takes longer than all else that they do.
    found = Worker(("tests.torchvision_names", *TOWER_MODULES))
    yield found
    found.close()


@pytest.fixture
def towers(worker: Worker) -> Iterator[TextTowers]:
    found = TextTowers(worker, 2**60)
    yield found
    found.open.discard(lambda _: True)


def children(worker: Worker) -> set[int]:
    """Of the process that opens files, one for each open tower."""
    worker.start()
    assert worker._server is not None
    pid = worker._server[0].pid
    return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_a_tower_is_opened_once_however_many_ask(
    models: list[Model], towers: TextTowers, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    real = vitviz.ui.server.text_towers.IsolatedTower

    def counted(*arguments: object) -> object:
        opened.append(arguments[1])
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(vitviz.ui.server.text_towers, "IsolatedTower", counted)
    features, expected = torch.randn(1, 24), open_text_tower(models[0]).target("cat")

    async def ask() -> list[Target]:
        return await asyncio.gather(*(towers.target(models[0], "cat") for _ in range(4)))

    scores = [float(target.score(features)) for target in on_loop(ask())]
    assert opened == [models[0]]
    assert scores == pytest.approx(4 * [float(expected.score(features))], abs=1e-5)


def wait_for_its_end(process: int, worker: Worker) -> None:
    wait_until(lambda: gc.collect() is not None and process not in children(worker))


@pytest.mark.long
@linux
def test_a_tower_takes_less_than_its_estimate(models: list[Model], plain_worker: Worker) -> None:
    before = children(plain_worker)
    on_loop(TextTowers(plain_worker, 2**60).target(models[0], "cat"))
    [process] = children(plain_worker) - before
    private = re.findall(r"^Private_\w+:\s+(\d+) kB$", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
    assert 1024 * sum(map(int, private)) < tower_bytes(models[0])


@linux
def test_the_tower_used_least_lately_makes_room(models: list[Model], worker: Worker) -> None:
    first, second = models
    towers = TextTowers(worker, tower_bytes(first) + tower_bytes(second) - 1)
    before = children(worker)
    on_loop(towers.target(first, "cat"))
    [process] = children(worker) - before
    on_loop(towers.target(second, "cat"))
    assert len(towers.open) == 1 and towers.open.total == tower_bytes(second)
    wait_for_its_end(process, worker)
    # It is opened again for who asks.
    on_loop(towers.target(first, "dog"))
    assert ref(first) in towers.open and ref(second) not in towers.open


def test_a_tower_keeps_no_model_in_memory(tmp_path: Path, towers: TextTowers) -> None:
    make_transformers(tmp_path, "CLIP")
    model = vitviz.load(tmp_path)
    on_loop(towers.target(model, "a cat"))
    assert len(towers.open) == 1
    kept = ref(model)
    del model
    gc.collect()
    assert kept() is None


def test_a_tower_beyond_the_bound_is_refused(models: list[Model], bundled: Model, worker: Worker) -> None:
    service = AnalysisService(bundled, ServerSettings(model_bytes=tower_bytes(models[0]) - 1), worker)
    with pytest.raises(LimitError, match="reading texts needs"):
        on_loop(service.towers.target(models[0], "a cat"))
    assert len(service.towers.open) == 0


def hostile(folder: Path) -> Model:
    """A model whose tokenizer makes a hundred million letters of one."""
    make_transformers(folder, "CLIP")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
    tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [longer] * 8}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    # CLIP's own would make its normalizer anew.
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return vitviz.load(folder)


@linux
@pytest.mark.hostile
def test_a_tower_that_takes_more_than_was_counted_for_it_ends(
    tmp_path: Path, models: list[Model], towers: TextTowers
) -> None:
    model = hostile(tmp_path)
    with pytest.raises(CheckpointError, match="expected"):
        on_loop(towers.target(model, "a"))
    assert len(towers.open) == 0
    on_loop(towers.target(models[0], "a cat"))


def test_a_tower_whose_process_is_gone_is_opened_again(models: list[Model], towers: TextTowers) -> None:
    on_loop(towers.target(models[0], "a cat"))
    kept = towers.open.get(ref(models[0]))
    assert kept is not None
    kept.close()
    with pytest.raises(CheckpointError, match="no answer"):
        on_loop(towers.target(models[0], "a dog"))
    on_loop(towers.target(models[0], "a dog"))
