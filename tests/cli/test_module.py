"""``python -m vitviz`` is the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import Capture
from vitviz.cli import main

ROOT = Path(__file__).parents[2]


@pytest.mark.process
@pytest.mark.parametrize(("arguments", "status"), [(["models"], 0), (["inspect", "nowhere.pth"], 2)])
def test_the_package_runs_as_the_command_does(arguments: list[str], status: int, capsys: Capture) -> None:
    line = [sys.executable, "-m", "vitviz", *arguments]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120)
    try:
        found = main(arguments)
    except SystemExit as stopped:
        found = int(stopped.code or 0)
    own = capsys.readouterr()
    assert (done.returncode, done.stdout, done.stderr) == (status, own.out, own.err) and found == status
    assert "Traceback" not in own.err
