"""A batch on Ray: the same rows as in one process, each once, whatever becomes of a worker."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

import vitviz
from tests.datasets.batches import Ended, end_after, rows
from tests.support.pictures import write_photos
from tests.support.refusals import check_refusals
from vitviz import ConfigError, DataError, Model
from vitviz.cli.command import main
from vitviz.datasets import (
    ENGINES,
    NUMBERS,
    READERS,
    BatchRequest,
    Cluster,
    MapRequest,
    Writer,
    analyze_dataset,
    cluster,
    read_items,
)
from vitviz.datasets import run_batch as run
from vitviz.datasets.batch import UNKNOWN
from vitviz.datasets.output import key_digest
from vitviz.datasets.readers import picture_in
from vitviz.datasets.work import BatchSettings, UnprocessedPictures
from vitviz.progress import Progress

COUNT, BROKEN = 20, "05.png"


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster on this machine with room for two workers; it takes seconds to start, so that it is there once."""
    import ray as found

    # The paths of its sockets may not be long.
    folder = mkdtemp(prefix="ray")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.RAY_SETTINGS.items():
            patch.setenv(name, value)
        options: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        found.init("local", log_to_driver=False, logging_level="ERROR", _temp_dir=folder, **options)
        yield found
        found.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Noise; one is no picture."""
    return write_photos(tmp_path / "photos", [f"{number:02d}.png" for number in range(COUNT)], broken=[BROKEN])


def check_same(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]], *, but: str = "") -> None:
    assert found.keys() == expected.keys()
    for name, row in found.items():
        assert row.keys() == expected[name].keys()
        for column, value in row.items():
            other = expected[name][column]
            if column == but:
                continue
            if column == "predictions" and value is not None:
                assert [each["label"] for each in value] == [each["label"] for each in other]
                value, other = ([each["probability"] for each in cell] for cell in (value, other))
            if isinstance(value, list | float):
                np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)
            else:
                assert value == other, (name, column)


@pytest.mark.process
def test_a_worker_that_is_killed_costs_no_picture_and_none_is_there_twice(
    ray: Any, model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is an archive, which a worker reads; it and the folder of results are relative paths."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open("photos.tar", "w") as archive:
        for file in sorted(photos.iterdir()):
            archive.add(file, file.name)
    request = BatchRequest(model, (MapRequest("rollout"), MapRequest("relevance")), ("attention_entropy",))
    items, output, killed = read_items("photos.tar"), Path("out"), tmp_path / "killed"
    run(request, items, tmp_path / "whole", batch_size=2)
    with pytest.raises(Ended):
        run(request, items, output, batch_size=2, report=end_after(3))

    def kill(found: Any, place: Callable[[str], Path]) -> None:
        """Whoever comes first ends itself, in the middle of its pictures; who works is written down."""
        place("pid").write_text(str(os.getpid()))
        try:
            killed.touch(exist_ok=False)
        except FileExistsError:
            return
        killed.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)

    done: list[Progress] = []
    writers = (Writer("workers", kill, lambda maps: (), whole_pictures=False),)
    options: dict[str, Any] = {"batch_size": 2, "writers": writers, "report": done.append}
    summary = run(request, items, output, engine="ray", cluster=Cluster(actors=1), **options)
    assert (summary.analysed, summary.failed, summary.skipped) == (COUNT - 4, 1, 3)
    assert (summary.wait_seconds, summary.batch_size, summary.left_out) == (None, 2, UNKNOWN)
    assert done[-1] == Progress(COUNT, 0)
    workers = {file.read_text() for file in (output / "workers").iterdir()}
    assert killed.read_text() and len(workers | {killed.read_text()}) > 1 and str(os.getpid()) not in workers
    check_same(rows(output), rows(tmp_path / "whole"))
    again = run(request, items, output)
    assert (again.analysed, again.failed, again.skipped) == (0, 0, COUNT)


@pytest.mark.process
def test_what_a_worker_reads_is_what_is_missing(ray: Any, photos: Path) -> None:
    keys = [item.key for item in read_items(str(photos))]
    for done in (keys[:4], keys):
        items = UnprocessedPictures(read_items(str(photos)), {key_digest(key) for key in done}, {})
        tables = list(cluster._read_items({}, ray.put(items), Path.cwd()))
        found = [item for table in tables for item in cluster._unpickled(table.to_pydict())]
        assert [item.key for item in found] == keys[len(done) :]
        assert [item.source for item in found] == [photos / key for key in keys[len(done) :]]
        # Ray needs columns where no row is missing.
        assert tables and len(tables[0]) == 0


@pytest.mark.process
def test_a_data_set_of_ray_is_answered_row_by_row(ray: Any, model: Model, photos: Path) -> None:
    (photos / BROKEN).unlink()
    request = BatchRequest(model, (MapRequest("rollout"),))
    found = ray.data.read_images(str(photos), include_paths=True)
    for greedy in (Cluster(actors=2), Cluster(actors=1, cpus=2), Cluster(cpus=2)):
        message = f".*expected {greedy.cpus} cores for each worker, and 1 for reading and writing"
        check_refusals(ConfigError, {message: lambda greedy=greedy: analyze_dataset(found, request, cluster=greedy)})
    check_refusals(ConfigError, {"request: a Model found": lambda: analyze_dataset(found, model)})
    answered = analyze_dataset(found, request).take_all()
    assert len(answered) == COUNT - 1
    for row in answered:
        analysis = vitviz.analyze(row["path"], model)
        np.testing.assert_allclose(row["rollout"], analysis.rollout().numpy().ravel(), rtol=1e-5, atol=1e-6)
        assert row["error"] is None and row["sha256"] is None and (row["width"], row["height"]) == (30, 20)


@pytest.mark.process
def test_what_a_cluster_lacks_is_one_sentence(
    ray: Any, model: Model, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request, items = BatchRequest(model), list(read_items(str(photos)))
    for wrong, words in (
        (Cluster(device="cuda"), "2 cores and 0 GPUs in the cluster: expected 1 cores and a GPU for each"),
        (Cluster(cpus=2), "2 cores and 0 GPUs in the cluster: expected 2 cores for each worker, and 1 for"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(request, items, tmp_path / "out", engine="ray", cluster=wrong)
    command = ["batch", str(photos), str(tmp_path / "own"), "--map", "rollout", "--engine", "ray", "--actor-cpus", "3"]
    assert main(command) == 2 and "expected 3 cores for each worker" in capsys.readouterr().err
    elsewhere = ray.put(BatchSettings(request, tmp_path / "elsewhere", writers=(NUMBERS,)))
    worker = cluster._Worker(elsewhere, None, Cluster(), lambda batch: items, tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"elsewhere: the worker on .* does not see it; expected a folder that"):
        worker({})

    @ray.remote
    def refuse() -> None:
        raise ConfigError("no such device")

    with pytest.raises(ray.exceptions.RayError) as error:
        ray.get(refuse.remote())
    assert str(cluster._error_of(error.value)) == "no such device"
    found = cluster._error_of(ray.exceptions.ActorDiedError())
    assert isinstance(found, DataError) and "the cluster gave up (" in str(found) and "run it again" in str(found)


def test_a_cluster_belongs_to_ray(model: Model, photos: Path, tmp_path: Path) -> None:
    request, items, output = BatchRequest(model), list(read_items(str(photos))), tmp_path / "out"
    assert list(ENGINES) == ["local", "ray"] and len({reader.name for reader in READERS}) == len(READERS)
    auto = Cluster(address="auto")
    calls = {
        "engine='local' has no cluster; expected engine='ray'": lambda: run(request, items, output, cluster=auto),
        ".*engine 'rey': .*did you mean 'ray'": lambda: run(request, items, output, engine="rey"),
        "actors = 0": lambda: Cluster(actors=0),
        "cpus = 0": lambda: Cluster(cpus=0),
    }
    check_refusals(ConfigError, calls)
    assert not output.exists()


def test_a_missing_extra_is_named(model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"a batch on Ray needs ray: pip install 'ray\[data\]>=2\.60'"):
        run(BatchRequest(model), read_items(str(photos)), tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


def test_a_cell_holds_a_picture_in_several_ways() -> None:
    values = np.zeros((2, 2, 3), np.uint8)
    for cell, expected in (
        (np.str_("a.png"), Path("a.png")),
        ({"bytes": b"content", "path": "a.png"}, b"content"),
        ({"bytes": None, "path": "a.png"}, Path("a.png")),
        (b"content", b"content"),
        (np.nan, b""),
        (None, b""),
    ):
        assert picture_in(cell, "1.png", Path()) == expected
    assert picture_in(values, "1.png", Path()) is values
