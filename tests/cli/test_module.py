"""``python -m vitviz`` is the command."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable

import pytest

from tests.support.commands import Capture
from vitviz.cli import main


def outcome(call: Callable[[], object], capsys: Capture) -> tuple[int, str, str]:
    """Exit status and what is printed."""
    try:
        status = call()
    except SystemExit as stopped:
        status = stopped.code
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return int(status or 0), printed.out, printed.err  # type: ignore[call-overload]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "status"), [(["models"], 0), (["inspect", "nowhere.pth"], 2)])
def test_the_package_runs_as_the_command_does(
    arguments: list[str], status: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = outcome(lambda: main(arguments), capsys)
    # What `python -m` does, without a process that imports torch again.
    monkeypatch.setattr(sys, "argv", ["vitviz", *arguments])
    found = outcome(lambda: runpy.run_module("vitviz", run_name="__main__", alter_sys=True), capsys)
    assert found == expected and found[0] == status and any(found[1:])
