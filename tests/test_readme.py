"""The README says what is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from vitviz import METHODS
from vitviz.cli.command import _parser
from vitviz.training.config import PRESETS

ROOT = Path(__file__).parents[1]
PICTURES = ("attention.png", "rollout.png", "relevance.png")
README = (ROOT / "README.md").read_text()


def test_the_table_of_methods_is_the_table_in_the_code() -> None:
    rows = [
        f"| {method.title} (`{method.name}`) | {', '.join(f'`{part.name}`' for part in method.parameters)} "
        f"| {method.citation} | {method.interpretation} |"
        for method in METHODS.values()
    ]
    expected = "\n".join(["| method | parameters | source | how to read it |", "| --- | --- | --- | --- |", *rows])
    found = re.search(r"<!-- methods -->\n(.*?)\n<!-- /methods -->", README, re.DOTALL)
    assert found is not None and found[1] == expected


def test_every_dependency_is_named_with_a_reason() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    packages = {re.split(r"[<>=!~ ]", line)[0] for line in lines if line and not line.startswith("#")}
    table = README.split("## What it is built on")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| ([\w-]+) \|", table, re.MULTILINE))
    assert packages <= named


def test_the_files_it_points_to_exist() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    places = re.findall(r"`((?:vitviz|tests|checkpoints|assets)/[\w./]*)`", README)
    assert links and places
    assert [path for path in links + places if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", ["README.md", "docs/training.md", "docs/verify.md", "checkpoints/README.md"])
def test_every_command_can_be_typed_so(document: str) -> None:
    lines = re.findall(r"^    vitviz (.*)$", (ROOT / document).read_text(), re.MULTILINE)
    assert lines
    for line in lines:
        # What is wrong ends the process with the usage.
        _parser().parse_args(shlex.split(line))


def test_every_preset_is_told() -> None:
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "training.md").read_text(), re.MULTILINE)
    assert told == list(PRESETS)


def test_the_example_in_python_runs(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    runnable = code[1].replace('"assets/', f'"{ROOT}/assets/')
    for name in PICTURES:
        assert f'"{name}"' in runnable
        runnable = runnable.replace(f'"{name}"', f'"{tmp_path / name}"')
    exec(compile(runnable, "README.md", "exec"), {})
    assert {path.name for path in tmp_path.iterdir()} == set(PICTURES)
