"""A plugin of coverage: names the running test in all processes that the tests start."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import coverage
from coverage.plugin_support import Plugins

# The variable that names the file with the running test.
RUNNING = "VITVIZ_RUNNING_TEST"
# The time in which a process that is killed may write what it ran. short: what it does not write is a smaller map.
GRACE_SECONDS = 1.0
_kill = os.kill


def context_of(name: str) -> str:
    """The name of a test or fixture for coverage, which joins two by ``|``."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def running() -> str:
    """The context of the running test; empty if none runs."""
    with suppress(KeyError, OSError):
        return Path(os.environ[RUNNING]).read_text()
    return ""


class NamesTest(coverage.CoveragePlugin):
    def configure(self, config: Any) -> None:
        config.set_option("run:context", running())


def coverage_init(registry: Plugins, options: dict[str, Any]) -> None:
    registry.add_configurer(NamesTest())
    # Only in a process that a test started.
    if running() and os.kill is _kill:
        os.kill = _kill_gently
        os.register_at_fork(before=_name_test)


def _name_test() -> None:
    """A process that outlives a test forks one for each."""
    with suppress(coverage.CoverageException, AttributeError):
        coverage.Coverage.current().switch_context(running())  # type: ignore[union-attr]


def _kill_gently(process: int, number: int) -> None:
    end = time.monotonic() + GRACE_SECONDS * (number == signal.SIGKILL)
    with suppress(ChildProcessError):
        while time.monotonic() < end and not os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            # short: how often it looks.
            time.sleep(0.01)
    _kill(process, number)
