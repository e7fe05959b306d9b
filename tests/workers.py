"""Runs the tests in several processes: ``pytest --workers 4``.

The tests are collected once, and the processes are forked from there, so that nothing is imported twice. Each asks for
its next file when it comes to the last test of the one before, so that what both need stays. Every other process begins
with the files that wait for a browser or a process, so that few open one, and the rest compute meanwhile. All of them
share the fork server of files, which would take each of them seconds to start.
"""

from __future__ import annotations

import atexit
import multiprocessing
from collections import deque
from itertools import groupby
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

from vitviz.worker import shared_worker

# Places of tests in session.items.
Places = list[int]
WAITING = ("browser", "process")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, metavar="COUNT", help="run the tests in so many processes")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.option.workers
    if not count or session.config.option.collectonly or session.testsfailed:
        return None
    files = Files(session)
    if files.waiting:
        # Its fork server imports while the tests begin.
        shared: Any = shared_worker()
        shared._control()
    workers: dict[Connection, Worker] = {}
    for number in range(count):
        if first := files.take(number % 2 == 0):
            worker = Worker(session, first, number % 2 == 0)
            workers[worker.connection] = worker
    while workers:
        for connection in wait(list(workers)):
            worker = workers[connection]
            if worker.hear(session, files):
                continue
            del workers[connection]
            if worker.places and not session.shouldfail:
                another = Worker(session, worker.places, worker.may_wait)
                workers[another.connection] = another
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


class Files:
    """The files that no process has begun, in the order of the session: those that wait, and those that compute."""

    def __init__(self, session: pytest.Session) -> None:
        self.waiting, self.computing = deque[Places](), deque[Places]()
        for _, numbers in groupby(range(len(session.items)), lambda at: session.items[at].path):
            places = list(numbers)
            names = {mark.name for at in places for mark in session.items[at].iter_markers()}
            (self.computing if names.isdisjoint(WAITING) else self.waiting).append(places)

    def take(self, may_wait: bool) -> Places:
        """The next file of one kind, or else of the other; empty at the end."""
        first, second = (self.waiting, self.computing) if may_wait else (self.computing, self.waiting)
        return (first or second or deque([[]])).popleft()


class LentServer:
    """The fork server of the process that this one was forked from, which alone can wait for it and ends it."""

    def __init__(self, process: Any) -> None:
        # Without, it would be said to run on.
        self.process = process

    def poll(self) -> None:
        """It runs, as far as is known: what is sent to it fails if not."""

    def wait(self, seconds: float | None = None) -> None: ...

    def kill(self) -> None: ...


class Worker:
    """A process that runs tests, seen from the one that reports them."""

    def __init__(self, session: pytest.Session, places: Places, may_wait: bool) -> None:
        self.may_wait = may_wait
        fork = multiprocessing.get_context("fork")
        self.connection, theirs = fork.Pipe()
        self.places = places
        self.process = fork.Process(target=work, args=(session, places, theirs))
        self.process.start()
        theirs.close()

    def hear(self, session: pytest.Session, files: Files) -> bool:
        """Take one message; False: the process is gone."""
        hook = session.config.hook
        try:
            report = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            if self.places and not session.shouldfail:
                item = session.items[self.places.pop(0)]
                said = f"its process ended: {self.process.exitcode}"
                hook.pytest_runtest_logreport(
                    report=pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
                )
            return False
        if report is None:
            following = [] if session.shouldfail else files.take(self.may_wait)
            self.places = self.places + following
            self.connection.send(following)
        else:
            report = hook.pytest_report_from_serializable(config=session.config, data=report)
            if report.when == "teardown":
                self.places = self.places[1:]
            hook.pytest_runtest_logreport(report=report)
        return True


def work(session: pytest.Session, places: Places, connection: Connection) -> None:
    # What the other process would do at its end is not for this one to do.
    atexit._clear()
    shared: Any = shared_worker()
    if shared._server is not None:
        process, control = shared._server
        shared._server = LentServer(process), control
    manager = session.config.pluginmanager
    capture: Any = manager.get_plugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    manager.unregister(name="terminalreporter")
    manager.register(Reporter(session.config, connection))
    try:
        while places:
            following: Places = []
            for number, at in enumerate(places):
                if number == len(places) - 1:
                    connection.send(None)
                    following = connection.recv()
                after = (places[number + 1 :] or following)[:1]
                item, nextitem = session.items[at], session.items[after[0]] if after else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
                if session.shouldfail:
                    return
            places = following
    finally:
        session._setupstate.teardown_exact(None)
        capture.stop_global_capturing()
        atexit._run_exitfuncs()


class Reporter:
    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self.config, self.connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.connection.send(self.config.hook.pytest_report_to_serializable(config=self.config, report=report))
