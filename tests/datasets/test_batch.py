"""A batch: the rows are what the library says of every picture, each once, whatever ends a run."""

from __future__ import annotations

import fcntl
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image

import vitviz
from tests.datasets.batches import COUNT, asked, rows
from tests.support.example import ROOT
from tests.support.pictures import write_photos
from tests.support.refusals import check_refusals
from vitviz import METHODS, ConfigError, MethodError, Model, QueryError, Style, VitvizError
from vitviz.analysis.batches import BatchQueue
from vitviz.cli.command import main
from vitviz.cli.grammar import map_request
from vitviz.datasets import NUMBERS, BatchRequest, MapRequest, Summary, overlays, read_items, run_batch, work
from vitviz.datasets.request import weights_digest
from vitviz.datasets.rows import PictureResult, compute_results
from vitviz.datasets.work import fitting_batch_size
from vitviz.evaluation.probes import probe

pytestmark = pytest.mark.slow


def test_a_range_of_values_is_applied_and_assumptions_are_kept(model: Model, tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    Image.fromarray(np.linspace(0, 4095, 900).reshape(30, 30).astype(np.uint16)).save(tmp_path / "scans" / "a.tif")
    items = read_items(str(tmp_path / "scans"))
    run_batch(BatchRequest(model), items, tmp_path / "dark")
    run_batch(BatchRequest(model, value_range=(0, 4095)), items, tmp_path / "bright")
    dark, bright = (rows(tmp_path / name)["a.tif"] for name in ("dark", "bright"))
    assert "end at 4,095 of 65,535" in dark["assumptions"][0] and bright["assumptions"] == []
    analysis = vitviz.analyze(tmp_path / "scans" / "a.tif", model, value_range=(0, 4095))
    assert bright["energy_score"] == pytest.approx(analysis.energy_score, abs=1e-5) != dark["energy_score"]
    with pytest.raises(ConfigError, match="value_range"):
        BatchRequest(model, value_range=(1, 0))


def test_a_batch_takes_a_source_and_paths_as_they_are_written(
    model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(photos.parent))
    whole = vitviz.run_batch(asked(model), f"~/{photos.name}", str(tmp_path / "whole"))
    assert whole.analysed == COUNT - 1
    paths = [f"~/{photos.name}/00.png", photos / "01.png"]
    assert vitviz.run_batch(asked(model), paths, f"~/{photos.name}-out").analysed == 2
    for number, each in enumerate((photos.glob("0[01].png"), set(paths))):
        assert vitviz.run_batch(asked(model), each, tmp_path / str(number)).analysed == 2
    expected, found = rows(tmp_path / "whole"), rows(photos.with_name(f"{photos.name}-out"))
    assert list(found) == list(map(str, paths))
    assert [row["sha256"] for row in found.values()] == [expected[name]["sha256"] for name in ("00.png", "01.png")]


def test_a_request_of_something_else_says_what_is_expected(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"maps: 'rollout' found; expected a MapRequest"):
        BatchRequest(model, maps=("rollout",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"request: a Model found; expected a BatchRequest, such as vitviz\.Batch"):
        run_batch(model, ["a.png"], "out")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="items: an Image found; expected an Item, such as"):
        run_batch(BatchRequest(model), [Image.new("RGB", (8, 8))], "out")  # type: ignore[list-item]
    with pytest.raises(MethodError, match="MapRequest has no parameter 'params'"):
        MapRequest("rollout", params={})  # type: ignore[call-arg]


@pytest.mark.parametrize("fit", [None, "native"])
def test_every_row_is_what_the_library_says_of_the_picture(
    model: Model, photos: Path, tmp_path: Path, fit: str | None
) -> None:
    request = asked(model, fit=fit)
    summary = run_batch(request, read_items(str(photos)), tmp_path / "out", batch_size=4)
    assert (summary.analysed, summary.failed, summary.skipped) == (COUNT - 1, 1, 0)
    found = rows(tmp_path / "out")
    assert sorted(found) == [f"{number:02d}.png" for number in range(COUNT)]
    for name, row in found.items():
        if name == "04.png":
            assert "expected a JPEG" in row["error"] and row["rollout"] is None and row["predictions"] is None
            continue
        analysis = vitviz.analyze(photos / name, model, fit)
        layout = analysis.trace.layout
        assert row["error"] is None and (row["width"], row["height"]) == analysis.prepared.image.size
        assert (row["rows"], row["columns"]) == (layout.grid_height, layout.grid_width)
        assert row["box"] == list(analysis.prepared.geometry.box)
        best = analysis.predictions(5)
        assert [each["label"] for each in row["predictions"]] == [each.label for each in best]
        assert [each["probability"] for each in row["predictions"]] == pytest.approx(
            [each.probability for each in best], abs=1e-6
        )
        assert row["energy_score"] == pytest.approx(analysis.energy_score, abs=1e-5)
        for column, heatmap in {
            "rollout": analysis.rollout(),
            "relevance:query=1x2,target=class 2": analysis.map("relevance", target="class 2", query=(1, 2)),
        }.items():
            np.testing.assert_allclose(row[column], heatmap.numpy().ravel(), rtol=1e-4, atol=1e-6)
            assert row[f"{column}.caption"] == heatmap.description
        for kind in request.probes:
            for name_of, each in probe(analysis, kind).measurements.items():
                assert row[f"{kind}.{name_of}.shape"] == list(each.values.shape)
                numbers = np.asarray(row[f"{kind}.{name_of}"], float)
                np.testing.assert_allclose(numbers, each.values.numpy().ravel(), rtol=1e-4, atol=1e-5)
    schema = parquet.read_schema(next((tmp_path / "out" / "parts").iterdir()))
    assert json.loads(schema.metadata[b"vitviz"]) == json.loads(json.dumps(request.to_json()))
    about = schema.field("relevance:query=1x2,target=class 2").metadata
    assert (about[b"method"], json.loads(about[b"parameters"])) == (
        b"relevance",
        {"query": [1, 2], "target": "class 2"},
    )


@pytest.mark.parametrize(("function", "columns"), [("sigmoid", {"predictions"}), ("none", set())])
def test_rows_have_the_probabilities_that_the_model_gives(
    make_model: Callable[..., Model], photos: Path, tmp_path: Path, function: str, columns: set[str]
) -> None:
    model = make_model(probability=function)
    run_batch(BatchRequest(model), read_items(str(photos)), tmp_path / "out")
    row = rows(tmp_path / "out")["00.png"]
    assert row.keys() & {"predictions", "energy_score"} == columns
    if columns:
        expected = vitviz.analyze(photos / "00.png", model).predictions(1)[0]
        assert row["predictions"][0] == {"label": expected.label, "probability": pytest.approx(expected.probability)}


def test_overlays_and_numbers_are_those_of_the_maps(model: Model, photos: Path, tmp_path: Path) -> None:
    request, style = asked(model, probes=()), Style("viridis", grid=True)
    run_batch(request, read_items(str(photos)), tmp_path / "out", writers=(overlays(style), NUMBERS))
    analysis = vitviz.analyze(photos / "07.png", model)
    with Image.open(tmp_path / "out" / "pictures" / "07.png.rollout.png") as picture:
        difference = np.abs(np.asarray(picture, int) - np.asarray(analysis.rollout().overlay(style), int))
        assert difference.max() <= 3
    assert len(list((tmp_path / "out" / "pictures").iterdir())) == 2 * (COUNT - 1)
    with np.load(tmp_path / "out" / "numbers" / "07.png.npz") as numbers:
        assert sorted(numbers) == sorted(["box", *(each.name for each in request.maps)])
        assert tuple(numbers["box"]) == analysis.rollout().geometry.box
        np.testing.assert_allclose(numbers["rollout"], analysis.rollout().numpy(), rtol=1e-4)


def test_a_large_picture_waits_smaller_and_is_described_as_it_is(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for its turn takes little memory, and nothing that is found of it changes."""
    photos, sizes = write_photos(tmp_path / "photos", ["large.png"], [(1100, 1200)]), []
    resized = work._shrink

    def counted(prepared: Any) -> Any:
        sizes.append(resized(prepared).image.size)
        return resized(prepared)

    monkeypatch.setattr(work, "_shrink", counted)
    request = asked(model, probes=())
    run_batch(request, read_items(str(photos)), tmp_path / "small", thumbnails=True, writers=(NUMBERS,))
    assert sizes == [(939, 1024)]
    run_batch(request, read_items(str(photos)), tmp_path / "whole", writers=(overlays(Style()),))
    assert len(sizes) == 1
    with Image.open(tmp_path / "whole" / "pictures" / "large.png.rollout.png") as overlay:
        assert overlay.size == (1100, 1200)
    small, whole = (rows(tmp_path / name)["large.png"] for name in ("small", "whole"))
    for name in request.maps:
        assert small[name.name] == whole[name.name]
    assert (small["width"], small["height"]) == (whole["width"], whole["height"]) == (1100, 1200)
    # The crop of the picture as its file has it, whatever waited.
    box = list(vitviz.analyze(photos / "large.png", model).rollout().geometry.box)
    assert whole["box"] == box and small["box"] == pytest.approx(box)
    with np.load(tmp_path / "small" / "numbers" / "large.png.npz") as numbers:
        assert numbers["box"].tolist() == small["box"]


def test_maps_of_one_method_are_computed_together(
    model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, compute = [], METHODS["rollout"].compute_batch
    assert compute is not None

    def counted(traces: Any, **parameters: Any) -> Any:
        together.append(len(traces))
        return compute(traces, **parameters)

    monkeypatch.setitem(METHODS, "rollout", replace(METHODS["rollout"], compute_batch=counted))
    run_batch(asked(model, probes=(), fit="squash"), read_items(str(photos)), tmp_path / "out", batch_size=5)
    # The fifth is none.
    assert sorted(together) == [2, 4, 5] and len(rows(tmp_path / "out")) == COUNT


def test_a_map_that_one_picture_has_not_is_that_picture_s_error_alone(model: Model, tmp_path: Path) -> None:
    photos = write_photos(
        tmp_path / "photos", [f"{number}.png" for number in range(4)], [*[(30, 20)] * 2, (60, 20), (30, 20)]
    )
    # The third has other patches: the last of the others is none of its own.
    request = asked(model, maps=(MapRequest("rollout", {"query": (3, 5)}),), probes=(), fit="native")
    summary = run_batch(request, read_items(str(photos)), tmp_path / "out")
    assert (summary.analysed, summary.failed) == (3, 1)
    assert "patch (3, 5): this model has" in rows(tmp_path / "out")["2.png"]["error"]


def test_the_summary_says_how_long_the_model_waited(
    model: Model, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, next_batch = [0], BatchQueue.next_batch

    def slowly(queue: BatchQueue) -> Any:
        clock[0] += 1
        return next_batch(queue)

    monkeypatch.setattr(BatchQueue, "next_batch", slowly)
    monkeypatch.setattr("vitviz.analysis.batches.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    summary = run_batch(BatchRequest(model), read_items(str(photos)), tmp_path / "out", batch_size=3, workers=1)
    assert summary.wait_seconds == clock[0] >= COUNT / 3


def test_the_batch_size_is_what_the_memory_allows(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    request, preprocessing = BatchRequest(model), model.preprocessing
    encoder = request.encoder()
    needed = {size: encoder.cost_at(preprocessing.height, preprocessing.width, size).nbytes for size in (1, 4, 8, 32)}
    for free, most, expected in (
        (10 * needed[32], needed[32], 32),
        (10 * needed[32], needed[32] - 1, 16),
        (2 * needed[8], 2**40, 8),
        (2 * needed[8] - 2, 2**40, 4),
        (0, 2**40, 1),
    ):
        monkeypatch.setattr(work, "free_memory", lambda free=free: free)
        assert fitting_batch_size(request, most) == expected


def test_a_folder_of_something_else_is_left_alone(
    model: Model, make_model: Callable[..., Model], photos: Path, tmp_path: Path
) -> None:
    items, output = list(read_items(str(photos))), tmp_path / "out"
    run_batch(asked(model), items, output)
    (tmp_path / "file").write_text("")

    def again(request: BatchRequest, place: Path = output) -> Callable[[], Summary]:
        return lambda: run_batch(request, items, place)

    others = {
        ".*a folder with other files; expected an empty or new one": again(asked(model), photos),
        ".*with other 'maps'": again(asked(model, maps=(MapRequest("rollout"),))),
        ".*with other 'fit'": again(asked(model, fit="native")),
        ".*with other 'weights'": again(asked(make_model(register_tokens=1))),
        ".*cannot be written": again(asked(model), tmp_path / "file" / "out"),
    }
    check_refusals(ConfigError, others)
    assert len(list(photos.glob("*.png"))) == COUNT
    with (output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check_refusals(ConfigError, {".*another batch is writing there": again(asked(model))})
    (output / "parts" / "part-000000.parquet").write_bytes(b"damaged")
    damaged = r".*part-000000\.parquet: damaged .*; remove it to have its pictures again"
    check_refusals(ConfigError, {damaged: again(asked(model))})
    (output / "_run.json").write_text("{")
    check_refusals(ConfigError, {".*no results of a batch there": again(asked(model))})


def test_what_is_requested_twice_is_computed_once(model: Model) -> None:
    twice = asked(model, maps=(MapRequest("rollout"),) * 2, probes=("token_norms",) * 2)
    assert (len(twice.maps), twice.probes) == (1, ("token_norms",))
    assert MapRequest("attention", {"layer": np.int64(1)}).to_json()["parameters"] == {"layer": 1}


def test_a_wrong_request_is_one_sentence_before_any_row(model: Model, photos: Path, tmp_path: Path) -> None:
    wrong: list[tuple[type[VitvizError], Callable[[], BatchRequest], str]] = [
        (MethodError, lambda: asked(model, probes=("norms",)), "norms"),
        (MethodError, lambda: asked(model, probes=("patch_filters",)), "the same for every picture; see vitviz probe"),
        (MethodError, lambda: asked(model, maps=(MapRequest("rolout"),)), "did you mean"),
        (MethodError, lambda: MapRequest("rollout", "x"), "parameters: 'x' found; expected a Mapping, such as"),  # type: ignore[arg-type]
        (MethodError, lambda: asked(model, maps=(MapRequest("rollout", {"layer": 1}),)), "has no parameter 'layer'"),
        (MethodError, lambda: asked(model, maps=(MapRequest("relevance", {"target": vitviz.margin()}),)), "as JSON"),
        (MethodError, lambda: asked(model, maps=(MapRequest("pooling_attention"),)), "pooling_attention: "),
        (MethodError, lambda: asked(model, maps=(MapRequest("relevance", {"target": "cat"}),)), "cat"),
        (QueryError, lambda: asked(model, maps=(MapRequest("attention", {"layer": 30}),)), "30"),
        (ConfigError, lambda: asked("vitviz-photos"), "model: 'vitviz-photos' found"),  # type: ignore[arg-type]
        (ConfigError, lambda: asked(model, resolution=7), "7"),
        (ConfigError, lambda: asked(model, features="tokens"), "features: 'tokens' found; expected a FeatureRequest"),
    ]
    for kind, make, words in wrong:
        with pytest.raises(kind, match=words):
            run_batch(make(), read_items(str(photos)), tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_weights_are_told_apart_by_every_number(make_model: Callable[..., Model]) -> None:
    model = make_model()
    before = weights_digest(model)
    assert weights_digest(model) == before
    next(iter(model.network.parameters())).view(-1)[0] += 1e-6
    assert weights_digest(model) != before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rollout", MapRequest("rollout")),
        ("rollout:discard_ratio=0.5,query=cls", MapRequest("rollout", {"discard_ratio": 0.5, "query": "cls"})),
        ("attention:query=3,2,layer=-1,head=0", MapRequest("attention", {"query": (3, 2), "layer": -1, "head": 0})),
        ("relevance:target=tabby, tabby cat", MapRequest("relevance", {"target": "tabby, tabby cat"})),
        ("occlusion:target=3,signed=True", MapRequest("occlusion", {"target": "3", "signed": True})),
    ],
)
def test_a_map_is_written_in_one_word(text: str, expected: MapRequest) -> None:
    assert MapRequest(*map_request(text)) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rolout", "did you mean 'rollout'"),
        ("rollout:layer=3", "no parameter 'layer'"),
        ("rollout:max", "'max' found; expected NAME=VALUE"),
        ("rollout:head_fusion=sum", "head_fusion 'sum': expected 'mean', 'max' or 'min'"),
        ("rollout:discard_ratio=much", "discard_ratio = 'much': expected"),
        ("occlusion:signed=yes", "signed = 'yes': expected true or false"),
    ],
)
def test_a_wrong_map_is_one_sentence(text: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["batch", "photos", "out", "--map", text])
    assert ended.value.code == 2 and words in " ".join(capsys.readouterr().err.split())


def test_the_command_says_what_it_did(
    model: Model, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitviz.save_checkpoint(tmp_path / "small.safetensors", model)
    command = [
        "batch",
        str(photos),
        str(tmp_path / "out"),
        "--map",
        "rollout",
        "--checkpoint",
        str(tmp_path / "small.safetensors"),
    ]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert f"{COUNT - 1} pictures analysed, " in said and re.search(r", 32 at once; the model waited \d+% of", said)
    assert "; 1 could not be analysed\n" in said and "\n  04.png: " in said
    # Run again, it says again what is missing.
    assert main([*command, "--pictures"]) == 1
    said = capsys.readouterr().out
    assert f"; {COUNT} there before, 1 of which could not be analysed, {COUNT - 1} of which lacked files" in said
    assert "\n  04.png: " in said and len(list((tmp_path / "out" / "pictures").iterdir())) == COUNT - 1
    Image.new("RGB", (30, 20)).save(photos / "04.png")
    assert main(command) == 1 and "04.png" in capsys.readouterr().out
    assert main([*command, "--retry-failed"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("1 picture analysed") and f"{COUNT - 1} there before\n" in said and "04.png" not in said
    assert main(["batch", str(tmp_path / "absent"), str(tmp_path / "out")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
    assert main(["batch", str(photos), str(tmp_path / "out"), "--pictures"]) == 2
    assert "--pictures: overlays of maps, of which none is given" in capsys.readouterr().err
    assert isinstance(run_batch(BatchRequest(model), [], tmp_path / "none"), Summary)


def test_a_missing_extra_is_named(photos: Path, tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"a folder of pictures needs pyarrow: pip install 'pyarrow>=17'"):
        run_batch(asked(model), read_items(str(photos)), tmp_path / "out")


def test_the_table_of_columns_is_that_of_the_documents(model: Model, photos: Path, tmp_path: Path) -> None:
    request = asked(model, box=(0, 0, 9, 9))
    run_batch(request, read_items(str(photos)), tmp_path / "out", thumbnails=True)
    schema = parquet.read_schema(next((tmp_path / "out" / "parts").iterdir()))
    table = (ROOT / "docs" / "scale.md").read_text().partition("<!-- columns -->")[2].partition("<!-- /columns -->")[0]
    documented = [name.strip("`") for line in table.splitlines()[3:] for name in line.split("|")[1].strip().split(", ")]
    names = {name for name in schema.names if name in documented}
    kinds = {"MAP", "MAP.caption", "MAP.inside", "PROBE.MEASUREMENT", "PROBE.MEASUREMENT.shape", "MAP.thumbnail"}
    # Those of vitviz features.
    kinds |= {"features", "features.shape"}
    assert names | kinds == set(documented)
    others = {"relevance:query=1x2,target=class 2", "rollout", "attention_entropy.entropy", "token_norms.norms"}
    assert set(schema.names) - names <= {
        f"{name}{end}" for name in others for end in ("", ".caption", ".inside", ".shape", ".thumbnail")
    } | {name for name in schema.names if name.startswith(("token_norms.", "attention_entropy."))}
    assert all(schema.field(name).metadata[b"meaning"] for name in schema.names)
    # One map of a picture is drawn small, the first that was asked for.
    small = [name for name in schema.names if name.endswith("thumbnail")]
    assert len(request.maps) > 1 and small == ["thumbnail", f"{request.maps[0].name}.thumbnail"]


def test_pictures_that_cannot_be_computed_together_are_computed_one_by_one(
    model: Model, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyses = [vitviz.analyze(photos / name, model) for name in ("00.png", "01.png", "02.png")]
    request = asked(model, probes=("token_norms",))

    def refused(traces: Any, **_: Any) -> Any:
        raise MethodError("one of them has no such map")

    monkeypatch.setitem(METHODS, "rollout", replace(METHODS["rollout"], compute_batch=refused))
    found = compute_results(analyses, request)
    for analysis, each in zip(analyses, found, strict=True):
        assert isinstance(each, PictureResult) and each.analysis is analysis
        np.testing.assert_array_equal(each.maps["rollout"].numpy(), analysis.rollout().numpy())
