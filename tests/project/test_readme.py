"""The README and the other documents are correct: their code runs, their tables and links are right."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.example import ROOT
from vitviz import METHODS
from vitviz.cli.parsing import parse
from vitviz.evaluation.probes import PROBES
from vitviz.training.presets import PRESETS
from vitviz.weights.overrides import OVERRIDES

README = (ROOT / "README.md").read_text()
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [
        *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")),
        ROOT / "assets" / "README.md",
        *(ROOT / "checkpoints" / "README.md", ROOT / "tests" / "data" / "README.md"),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
}
INTERNAL_EXTRAS = ("docs", "kernels", "release", "test", "test-library")
every_document = pytest.mark.parametrize("document", DOCUMENTS)

# Blocks of code.

FENCE = re.compile(r"(<!-- not run: [^>\n]+ -->\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Its block needs a running app: tests/ui/test_app_api.py runs it.
NEEDS_THE_APP = {"docs/app.md"}
PICTURES_OF_README = {"attention.png", "rollout.png", "relevance.png", "own.png"}


def python_blocks(document: str) -> list[tuple[bool, str]]:
    """For each block of Python in a document, whether it can run, and its code."""
    found = [match.groups() for match in FENCE.finditer(DOCUMENTS[document])]
    return [(mark is None, code) for mark, language, code in found if language == "python"]


WITH_PYTHON = [document for document in DOCUMENTS if python_blocks(document)]
RUNNABLE = [
    document
    for document in WITH_PYTHON
    if document not in NEEDS_THE_APP and any(runs for runs, _ in python_blocks(document))
]


# These analyse many pictures or large ones.
LONG = {f"docs/{page}.md" for page in ("methods", "scale", "training")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "document", [pytest.param(page, marks=pytest.mark.long) if page in LONG else page for page in RUNNABLE]
)
def test_the_python_of_a_document_runs(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some use transformers, which needs torchvision's names.
    importlib.import_module("tests.torchvision_names")
    shutil.copytree(ROOT / "assets", tmp_path / "assets")
    shutil.copy(ROOT / "assets" / "rocket.jpg", tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for runs, code in python_blocks(document):
        if runs:
            exec(compile(code, document, "exec"), names)
    written = {path.name for path in tmp_path.iterdir()} - {"assets", "photo.jpg"}
    saved = {
        name
        for runs, code in python_blocks(document)
        if runs
        for name in re.findall(r"(?:save|Path)\(\"([\w.]+)\"", code)
    }
    assert saved <= written
    if document == "README.md":
        assert written == PICTURES_OF_README


def resolve(node: ast.expr, names: dict[str, Any]) -> Any:
    """The object of a dotted name, among those that a block imports."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    parent = resolve(node.value, names) if isinstance(node, ast.Attribute) else None
    return None if parent is None or not isinstance(node, ast.Attribute) else getattr(parent, node.attr)


def check_calls(code: str) -> int:
    """Import what a block imports, and bind each call of an imported name to its signature.

    Returns:
        The number of calls.
    """
    tree = ast.parse(code)
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name: importlib.import_module(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            module = importlib.import_module(node.module)
            names |= {alias.name: getattr(module, alias.name) for alias in node.names}
    count = 0
    for node in ast.walk(tree):
        function: Callable[..., Any] | None = resolve(node.func, names) if isinstance(node, ast.Call) else None
        if function is not None and isinstance(node, ast.Call):
            keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg is not None}
            # A compiled function has no signature; the block itself runs.
            with suppress(ValueError):
                inspect.signature(function).bind(*node.args, **keywords)
                count += 1
    return count


@pytest.mark.slow
@pytest.mark.parametrize("document", sorted(set(WITH_PYTHON)))
def test_python_blocks_call_existing_functions_with_valid_arguments(document: str) -> None:
    importlib.import_module("tests.torchvision_names")
    assert sum(check_calls(code) for _, code in python_blocks(document)) > 0


# Commands.

INDENTED = re.compile(r"^ {4,8}((?:[A-Z_]+=\S+ )*)(?:\.venv/bin/)?(vitviz|make|python) (.*)$", re.MULTILINE)


def commands(document: str, program: str) -> list[list[str]]:
    """The arguments of each call of a program in the indented lines of a document."""
    found = INDENTED.findall(DOCUMENTS[document])
    return [shlex.split(line) for _, name, line in found if name == program]


def test_no_form_of_a_command_is_overlooked() -> None:
    for document, text in DOCUMENTS.items():
        shown = re.findall(r"^ {4,8}(?:\S+=\S+ )*(?:\.venv/bin/)?vitviz ", FENCE.sub("", text), re.MULTILINE)
        assert len(shown) == len(commands(document, "vitviz")), document
    assert sum(len(commands(document, "vitviz")) for document in DOCUMENTS) > 40


@pytest.mark.slow
@every_document
def test_every_command_of_the_page_parses(document: str) -> None:
    for line in commands(document, "vitviz"):
        # A wrong command ends the process with the usage.
        parse(line)


@every_document
def test_every_target_of_make_is_there(document: str) -> None:
    text = DOCUMENTS[document]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {line[0] for line in commands(document, "make")} | set(re.findall(r"`make ([a-z-]+)[^`\n]*`", text))
    assert named <= targets


@every_document
def test_every_python_module_that_is_run_exists(document: str) -> None:
    lines = commands(document, "python") + [
        shlex.split(line) for line in re.findall(r"`python (-m [^`]+)`", DOCUMENTS[document])
    ]
    for option, module, *rest in lines:
        assert option == "-m" and find_spec(module) is not None, module
        assert [path for path in rest if path.startswith("tests/") and not (ROOT / path).exists()] == []


# Tables.


def table(text: str, name: str) -> list[list[str]]:
    """The cells of the rows of a table between its marks, without the two lines of its head."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, re.DOTALL)
    assert found is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in found[1].splitlines()[2:]]


def column(document: str, heading: str) -> list[str]:
    """The first column of the table whose head begins with a title."""
    rows = DOCUMENTS[document].partition(f"| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.split(" | ")[0].strip("| ") for row in rows]


def quoted(cells: list[str]) -> list[str]:
    """What stands between backquotes."""
    return re.findall(r"`([\w-]+)`", " ".join(cells))


def names(document: str, name: str) -> list[str]:
    """The first column of a table between its marks."""
    return [row[0] for row in table(DOCUMENTS[document], name)]


def in_folder(folder: Path) -> set[str]:
    """Packages and modules directly in a package."""
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return packages | {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}


PYPROJECT = (ROOT / "pyproject.toml").read_text()
EXTRAS = re.findall(
    r"^([\w-]+) = \[$", PYPROJECT.partition(".optional-dependencies]")[2].partition("\n[")[0], re.MULTILINE
)
LAYERS = re.findall(r'"(\w+)"', PYPROJECT.partition("\nlayers = [\n")[2].partition("\n]")[0])
REQUIRED = {
    re.split(r"[<>=]", line)[0] for line in (ROOT / "requirements.txt").read_text().splitlines() if line[0] != "#"
}
BUILT_ON = ", ".join(column("docs/architecture.md", "package | reason")).split(", ")
WEIGHTS = ROOT / "vitviz" / "weights"
# What a table names, and what there is.
TABLES: dict[str, tuple[Any, Any]] = {
    "methods": (
        column("docs/methods.md", "method | formula, from the source in the table above"),
        [each.title for each in METHODS.values()],
    ),
    "probes": (column("docs/methods.md", "probe | definition"), [each.title for each in PROBES.values()]),
    "overrides": (sorted(quoted(column("docs/models.md", "override"))), sorted([*OVERRIDES, "ignore"])),
    "presets": (quoted(column("docs/training.md", "preset")), list(PRESETS)),
    "extras": (sorted(quoted(names("docs/index.md", "extras"))), sorted({*EXTRAS} - {*INTERNAL_EXTRAS})),
    "rooms": (sorted(quoted(names("docs/architecture.md", "rooms"))), sorted(in_folder(ROOT / "vitviz"))),
    "rooms of weights": (
        sorted(quoted(names("docs/architecture.md", "weights"))),
        sorted(path.name for path in WEIGHTS.iterdir() if path.is_dir() and path.name != "__pycache__"),
    ),
    "order of the linter": (["__main__", *reversed(quoted(names("docs/architecture.md", "rooms")))], LAYERS),
    "dependencies": (REQUIRED - {*BUILT_ON}, set()),
}


@pytest.mark.parametrize(("said", "found"), TABLES.values(), ids=TABLES)
def test_a_table_has_all_that_there_is(said: Any, found: Any) -> None:
    assert said == found


def test_the_readme_counts_the_families() -> None:
    count_text = re.search(r"each of (\d+) architecture × package combinations", README)
    assert count_text is not None and int(count_text[1]) == len(names("docs/checked.md", "families"))


# Links and names.

LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_every_link_leads_to_a_file_and_a_heading(document: str) -> None:
    for link in LINK.findall(DOCUMENTS[document]):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / document).parent / path).resolve() if path else ROOT / document
        assert target.exists() and target.is_relative_to(ROOT), link
        assert not anchor or anchor in anchors(target.read_text()), link


@every_document
def test_every_file_that_is_named_exists(document: str) -> None:
    named = re.findall(r"`((?:vitviz|tests|checkpoints|assets|docs|benchmarks)/[\w./]*)`", DOCUMENTS[document])
    assert [path for path in named if not (ROOT / path).exists()] == []


@every_document
def test_no_merge_was_left_unfinished(document: str) -> None:
    assert not re.search(r"^(<{7}|={7}|>{7})( |$)", DOCUMENTS[document], re.MULTILINE)


def test_all_documents_are_linked_from_the_readme_or_a_page_that_it_links_to() -> None:
    reached, waiting = set(), ["README.md"]
    while waiting:
        document = waiting.pop()
        if document in reached:
            continue
        reached.add(document)
        for link in LINK.findall(DOCUMENTS[document]):
            target = ((ROOT / document).parent / link.partition("#")[0]).resolve()
            if "://" not in link and target.is_relative_to(ROOT):
                name = target.relative_to(ROOT).as_posix()
                waiting += [name] if name in DOCUMENTS else []
    # PyPI shows this page alone; pyproject.toml names it.
    assert reached == set(DOCUMENTS) - {"docs/site/pypi.md"}


def test_the_readme_is_short_and_shows_before_it_tells() -> None:
    body = README.split("---\n", 2)[2]
    assert len(body.split()) <= 700
    assert body.index("![") < body.index("```python") < body.index("make app")
