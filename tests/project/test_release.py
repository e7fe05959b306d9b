"""The needs of a release: one version, a changelog, a citation, and workflows and hooks that run the same as `make`."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

import vitviz
from tests.distributions import sdist_problems, wheel_files, wheel_problems
from tests.support.example import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = {path.name: path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}


def test_the_version_is_in_one_place_and_others_agree() -> None:
    assert '[tool.hatch.version]\npath = "vitviz/__init__.py"\n' in (ROOT / "pyproject.toml").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == vitviz.__version__
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## \[(.+?)\]", changes, re.MULTILINE)[:2] == ["Unreleased", vitviz.__version__]


def test_every_heading_of_the_changes_is_one_of_keep_a_changelog() -> None:
    kinds = set(re.findall(r"^### (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_the_citation_has_what_its_schema_requires_and_names_nobody_who_is_not_there() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "Apache-2.0"
    assert citation["authors"] == [{"name": "The vitviz authors"}]


def test_no_document_of_the_release_has_an_address_of_a_person() -> None:
    for name in ("SECURITY.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "docs/site/pypi.md"):
        assert re.findall(r"[\w.+-]+@[\w-]+\.\w+", (ROOT / name).read_text()) == []


# Distributions.


def test_the_page_of_the_index_has_no_link_into_the_repository() -> None:
    text = (ROOT / "docs" / "site" / "pypi.md").read_text()
    assert 'readme = "docs/site/pypi.md"' in (ROOT / "pyproject.toml").read_text()
    assert "](" not in text and "---" not in text


def test_missing_and_surplus_files_of_a_wheel_are_found() -> None:
    expected = wheel_files()
    assert {
        "vitviz/__init__.py",
        "vitviz/__main__.py",
        "vitviz/ui/page/start.js",
        "vitviz/ui/page/device/kernels.wasm",
        "vitviz/assets/chelsea.jpg",
    } <= expected
    assert not [name for name in expected if "screenshot" in name or "recipe" in name]
    wheel = expected | {"vitviz-0.1.0.dist-info/RECORD"}
    assert wheel_problems(wheel, expected) == []
    broken = (wheel - {"vitviz/py.typed"}) | {"tests/test.py"}
    assert wheel_problems(broken, expected) == ["lacks vitviz/py.typed", "holds tests/test.py"]
    sdist = {"v/vitviz/a.py", "v/assets/b.jpg", "v/LICENSE", "v/secret"}
    found = sdist_problems(sdist, {"vitviz/a.py", "vitviz/assets/b.jpg"})
    assert "holds secret" in found and "lacks pyproject.toml" in found and "lacks LICENSE" not in found
    assert not [each for each in found if each.endswith(("a.py", "b.jpg"))]


# Workflows and hooks.


def steps(workflow: str) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(WORKFLOWS[workflow])["jobs"].values() for step in job["steps"]]


def test_the_workflows_call_the_two_commands_of_the_readme_on_both_systems() -> None:
    jobs = yaml.safe_load(WORKFLOWS["test.yml"])["jobs"]
    assert [name.split("-")[0] for name in jobs["commands"]["strategy"]["matrix"]["os"]] == ["ubuntu", "macos"]
    lines = " ".join(step.get("run", "") for step in steps("test.yml"))
    assert all(f"make {target}" in lines for target in ("app", "test", "oldest", "newest", "docs"))


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_action_is_pinned_and_may_only_read(workflow: str) -> None:
    text = WORKFLOWS[workflow]
    used = re.findall(r"uses: (.+)$", text, re.MULTILINE)
    assert used
    for each in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert "secrets." not in text and "pull_request_target" not in text


def test_a_tag_publishes_the_tested_files_by_trusted_publishing() -> None:
    release = yaml.safe_load(WORKFLOWS["release.yml"])
    # YAML 1.1 reads the word `on` as true.
    assert release[True] == {"push": {"tags": ["v*"]}}
    jobs = release["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"} and jobs["publish"]["environment"] == "pypi"
    assert jobs["publish"]["needs"] == ["wheel", "long"] and jobs["wheel"]["needs"] == "build"
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_every_target_of_a_workflow_is_in_the_makefile(workflow: str) -> None:
    targets = re.findall(
        r"\bmake ((?:[a-z-]+ )*[a-z-]+)\b(?!\.)", " \n".join(s.get("run", "") for s in steps(workflow))
    )
    named = {word for line in targets for word in line.split()}
    assert named and named <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


def test_the_hooks_are_the_linters_of_make_test() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    recipe = MAKEFILE.partition("\ntest: ")[2].partition("\n\n")[0]
    beside = MAKEFILE.partition("\nCHECKS := ")[2].partition("\nBESIDE_CHECKS = ")[0]
    linters = [
        words.strip() for words in re.findall(r"\$\(BIN\)/((?:ruff|mypy|lint-imports)[a-z -]*)", recipe + beside)
    ]
    assert "$(call BESIDE_CHECKS," in recipe
    assert sorted(hook["entry"].removeprefix(".venv/bin/") for hook in hooks) == sorted(linters)
