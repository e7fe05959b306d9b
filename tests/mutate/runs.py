"""Runs tests on a changed copy of the working tree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mutate.hooks import RUN
from tests.mutate.places import Place
from tests.mutate.reach import Reach

MAX_SECONDS = 300.0
HANG_FACTOR, HANG_SECONDS = 10, 30.0
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "dist", ".*_cache", "artefacts", "runs", "*.partial")
# The exit statuses of pytest when all tests passed, and when there was none.
PASSED = (0, 5)
Verdict = dict[str, Any]


def judge(
    places: Iterable[Place], state: Path, verdict_of: Callable[[Place], Verdict], jobs: int = 1
) -> dict[str, Verdict]:
    """The verdict of each place by its identity; those in the state file are not asked for again."""
    known = read_state(state)
    wanted = list(places)
    lock = threading.Lock()

    def ask(place: Place) -> None:
        facts = {"identity": place.identity, "line": place.line, "before": place.before, "after": place.after}
        row = {**facts, **verdict_of(place)}
        with lock:
            known[place.identity] = row
            with state.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                f"{'noticed' if row['noticed'] else 'NOT NOTICED'}: {place.describe()} ({row.get('how')})", flush=True
            )

    with ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(ask, [place for place in wanted if place.identity not in known]))
        finally:
            # After an interrupt, those that run come to their end.
            pool.shutdown(wait=False, cancel_futures=True)
    return {place.identity: known[place.identity] for place in wanted}


def read_state(state: Path) -> dict[str, Verdict]:
    """The verdicts of a state file, by identity; a last line that was interrupted is left out."""
    known: dict[str, Verdict] = {}
    state.parent.mkdir(parents=True, exist_ok=True)
    content = state.read_text() if state.exists() else ""
    whole = content[: content.rfind("\n") + 1]
    if whole != content:
        state.write_text(whole)
    for line in whole.splitlines():
        row = json.loads(line)
        known[row["identity"]] = row
    return known


class Trees:
    """Copies of the working tree, one for each run at a time.

    Args:
        root: of the repository.
        folder: an empty folder for the copies.
        reach: the map.
        jobs: how many copies.
        seconds: the most that a run may take.
    """

    def __init__(self, root: Path, folder: Path, reach: Reach, jobs: int, seconds: float = MAX_SECONDS) -> None:
        self.reach, self.seconds = reach, seconds
        self._free: SimpleQueue[Path] = SimpleQueue()
        self._sound: set[str] = set()
        for number in range(jobs):
            shutil.copytree(root, folder / str(number) / "tree", ignore=LEFT_OUT, symlinks=True)
            self._free.put(folder / str(number))

    def verdict(self, place: Place) -> Verdict:
        """Whether the tests notice a change, and how."""
        chosen = self.reach.tests(place)
        folder, start = self._free.get(), time.monotonic()
        path = folder / "tree" / place.file
        source = path.read_bytes()
        left, dropped = chosen, []
        try:
            while True:
                path.write_bytes(place.change(source))
                try:
                    found = self._run(folder, left)
                    failed = found.pop("failed")
                    is_sure = not failed or self._run(folder, [failed])["noticed"]
                finally:
                    path.write_bytes(source)
                if is_sure and (not failed or self._passes_unchanged(folder, failed)):
                    break
                dropped.append(failed)
                left = left[left.index(failed) + 1 :]
        finally:
            self._free.put(folder)
        return {**found, "of": len(chosen), "dropped": dropped, "seconds": round(time.monotonic() - start, 1)}

    def _passes_unchanged(self, folder: Path, test: str) -> bool:
        if test not in self._sound and not self._run(folder, [test])["noticed"]:
            self._sound.add(test)
        return test in self._sound

    def _run(self, folder: Path, tests: Sequence[str]) -> Verdict:
        """Run tests until one fails, hangs, or the time is over; none leave a change unnoticed."""
        tree, events = folder / "tree", folder / "events.jsonl"
        events.write_text("")
        (folder / "tests.json").write_text(json.dumps(tests))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"PYTHONPATH": str(tree), RUN: str(folder)}
        files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
        if not files:
            return {"noticed": False, "how": "no other test", "tests": 0, "failed": ""}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "tests.mutate.hooks"]
        command += [f"--basetemp={folder / 'tmp'}", *files]
        with (folder / "log").open("w+") as log:
            options: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            with subprocess.Popen(command, cwd=tree, env=environment, **options) as process:
                stopped = self._watch(process, events)
                _end(process)
        rows = [json.loads(line) for line in events.read_text().splitlines()]
        started = [row["test"] for row in rows if "test" in row]
        failed = next((row["failed"] for row in rows if "failed" in row), "")
        count = {"tests": len(started), "failed": failed}
        if failed:
            return {"noticed": True, "how": f"fails: {failed}", **count}
        if stopped:
            return {"noticed": stopped != "time", "how": stopped, **count}
        is_noticed = process.returncode not in PASSED
        return {"noticed": is_noticed, "how": "the tests cannot be run" if is_noticed else "passes", **count}

    def _watch(self, process: subprocess.Popen[bytes], events: Path) -> str:
        """Wait for the end; what ended it from outside: "time", or a test that hung."""
        end = time.monotonic() + self.seconds
        while True:
            try:
                # short: how often it looks.
                process.wait(0.5)
                return ""
            except subprocess.TimeoutExpired:
                rows = [json.loads(line) for line in events.read_text().splitlines()]
            running = next((row for row in reversed(rows) if "test" in row), None)
            if running is not None:
                usual = self.reach.seconds.get(running["test"], 0.0)
                if time.time() - running["time"] > HANG_FACTOR * usual + HANG_SECONDS:
                    return f"hangs: {running['test']}"
            if time.monotonic() > end:
                return "time"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all that a run has started and that is in its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
