"""Areas over many images: the methods compared, the confidence intervals, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.support.makers import MakeModel
from vitviz import METHODS, save_checkpoint
from vitviz.cli.command import main
from vitviz.errors.kinds import DataError, MethodError
from vitviz.evaluation.method_table import Interval, areas, find_images, methods_for, table, verdicts
from vitviz.metrics.faithfulness import METRICS, RANDOM

pytestmark = pytest.mark.slow


# Neither the bundled model nor those of this file have attention pooling.
SERVING = [name for name, method in METHODS.items() if method.pooling is None]


def test_an_interval_is_the_mean_and_its_confidence() -> None:
    found = Interval.of(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    assert found.mean == pytest.approx(1.5)
    assert found.margin == pytest.approx(1.96 * (5 / 3) ** 0.5 / 2)
    assert [Interval(mean, 0.1).sign for mean in (0.2, 0.05, -0.05, -0.2)] == [1, 0, 0, -1]


def test_images_at_any_depth_are_sampled_reproducibly(folder: Path) -> None:
    assert len(set(find_images(folder, 5))) == 5
    assert find_images(folder, 3, seed=1) == find_images(folder, 3, seed=1)
    assert len({tuple(find_images(folder, 3, seed)) for seed in range(9)}) > 1
    wrong = (folder, 6, "5 images in it; expected at least 6"), (folder, 1, "at least 2"), (folder / "a", 2, "no such")
    for place, count, message in wrong:
        with pytest.raises(DataError, match=message):
            find_images(place, count)


def test_without_a_classifier_there_is_nothing_to_watch(make_model: MakeModel) -> None:
    with pytest.raises(MethodError, match="small has no classifier: no probability tells how faithful a map is"):
        methods_for(make_model(classes=0))


def test_the_command_prints_the_table_and_keeps_every_area(
    make_model: MakeModel, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, output = tmp_path / "small.safetensors", tmp_path / "areas.json"
    model = make_model()
    save_checkpoint(checkpoint, model)
    command = ["evaluate-methods", str(folder), "--checkpoint", str(checkpoint), "--count", "2", "-o", str(output)]
    assert main([*command, "--resolution", "24"]) == 0
    output_text, error_text = capsys.readouterr()
    assert f"vitviz: {folder}: 1 file left out: notes.txt (not a picture)\n" in error_text
    assert output_text.count("\n") == 2 + len(SERVING) + 1 and "| Relevance (TransMM) |" in output_text
    saved = json.loads(output.read_text())
    assert len(saved["images"]) == 2 and all((folder / name).is_file() for name in saved["images"])
    found = {
        metric: {name: torch.tensor(values) for name, values in each.items()} for metric, each in saved["areas"].items()
    }
    assert list(found) == list(METRICS)
    for each in found.values():
        assert list(each) == [*SERVING, RANDOM]
        assert all(values.shape == (2,) and ((values >= 0) & (values <= 1)).all() for values in each.values())
    assert table(found) + "\n" == output_text and saved["resolution"] == 24
    assert main([*command, "--method", "legrad", "--method", "rollout"]) == 0
    assert [line.split(" |")[0] for line in capsys.readouterr().out.splitlines()[2:]] == [
        "| LeGrad",
        "| Attention rollout",
        f"| {RANDOM}",
    ]
    reports: list[int] = []
    images = find_images(folder, 2)
    finer = areas(model, images, ("deletion",), resolution=24, report=reports.append)
    assert reports == [1, 2]
    coarser = areas(model, images, ("deletion",))
    for name, values in finer["deletion"].items():
        assert torch.equal(values.double(), found["deletion"][name].double())
    assert not torch.equal(finer["deletion"]["rollout"], coarser["deletion"]["rollout"])


def test_better_is_lower_or_higher_as_the_metric_says() -> None:
    chance = torch.tensor([0.5, 0.6, 0.4, 0.5])
    lower, same = chance - torch.tensor([0.3, 0.31, 0.29, 0.3]), chance + torch.tensor([0.1, -0.1, 0.1, -0.1])
    found = {name: {"rollout": lower, "legrad": same, RANDOM: chance} for name in ("deletion", "insertion")}
    assert verdicts(found, "deletion") == {"rollout": 1, "legrad": 0}
    assert verdicts(found, "insertion") == {"rollout": -1, "legrad": 0}
    lines = table(found).splitlines()
    assert lines[0] == "| method | Deletion (↓) | Insertion (↑) |"
    assert lines[2].startswith("| Attention rollout | 0.200 ± 0.0") and lines[2].count("▲") == lines[2].count("▼") == 1
    assert "▲" not in lines[3] + lines[4] and lines[4].startswith(f"| {RANDOM} | 0.500 ± ")
