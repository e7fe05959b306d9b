"""A GPU that the host lends for a forward pass: requested once, with the same numbers, and errors raised here."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import gradio as gr
import pytest
import torch

from tests.support.example import EXAMPLE
from vitviz import Analysis, Model, analyze
from vitviz.errors.kinds import ConfigError, ImageError, LimitError, QueryError
from vitviz.progress import Progress
from vitviz.ui import build_demo, hosting
from vitviz.ui.hosting import Forward, forward
from vitviz.ui.service import AnalysisService

pytestmark = pytest.mark.process


class Host(ModuleType):
    """The host's package: functions run in a process forked at the first call, to which everything is pickled."""

    def __init__(self) -> None:
        super().__init__("spaces")
        self.functions: list[Any] = []
        self.refusal: Exception | None = None
        self.calls: list[tuple[Any, ...]] = []
        self._workers: list[Any] = []

    def GPU(self, function: Callable[..., Any], duration: int) -> Callable[..., Any]:
        assert 0 < duration < 60
        self.functions.append(function)

        def call(*arguments: Any) -> Any:
            if self.refusal is not None:
                raise self.refusal
            if not self._workers:
                self._fork(function)
            self.calls.append(arguments)
            connection = self._workers[-1][1]
            connection.send_bytes(pickle.dumps(arguments))
            process, found = pickle.loads(connection.recv_bytes())
            assert process == self._workers[-1][0].pid != os.getpid()
            return found

        return call

    def _fork(self, function: Callable[..., Any]) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()

        def serve() -> None:
            # OpenMP would wait for threads that were not forked, and MKL as a thread of the fork ends.
            pool = ThreadPoolExecutor(1)
            while content := theirs.recv_bytes():
                found = pool.submit(function, *pickle.loads(content)).result()
                theirs.send_bytes(pickle.dumps((os.getpid(), found)))
            os._exit(0)

        process = context.Process(target=serve, daemon=True)
        process.start()
        self._workers.append((process, ours))

    def end(self) -> None:
        """End the process with the GPU; the next call starts another."""
        for process, connection in self._workers:
            connection.send_bytes(b"")
            process.join()
        self._workers.clear()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host that lends GPUs, which are processors here, for every forward pass."""
    found = Host()
    monkeypatch.setitem(sys.modules, "spaces", found)
    monkeypatch.setenv("SPACES_ZERO_GPU", "true")
    monkeypatch.setattr(hosting, "GPU", "cpu")
    monkeypatch.setattr(hosting, "MIN_GPU_FLOPS", 0)
    forward.cache_clear()
    yield found
    found.end()
    forward.cache_clear()


# Of Python 3.12 and newer, about what the host does.
forking = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def by(run: Forward | None, model: Model, **options: Any) -> Analysis:
    return analyze(EXAMPLE, model, resolution=24, forward=run, **options)


def assert_same(found: Analysis, expected: Analysis) -> None:
    torch.testing.assert_close(found.logits, expected.logits)
    for name in ("queries", "keys"):
        ours, theirs = getattr(found.trace, name), getattr(expected.trace, name)
        assert torch.equal(ours, theirs) and ours.stride() == theirs.stride() and ours.dtype == theirs.dtype
    assert found.trace.known_log_sums.keys() == expected.trace.known_log_sums.keys() != set()
    for layer in range(expected.trace.layers):
        assert torch.equal(found.trace.log_sums(layer), expected.trace.log_sums(layer))
    for name in ("scale", "layout", "keep_bytes", "nbytes"):
        assert getattr(found.trace, name) == getattr(expected.trace, name)


def test_elsewhere_everything_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # An import would fail.
    monkeypatch.setitem(sys.modules, "spaces", None)
    forward.cache_clear()
    for value in (None, "", "false", "0"):
        monkeypatch.delenv("SPACES_ZERO_GPU", raising=False)
        if value is not None:
            monkeypatch.setenv("SPACES_ZERO_GPU", value)
        assert forward() is None


def test_the_host_gets_the_forward_pass_once_and_nothing_else(
    host: Host, make_model: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "MIN_GPU_FLOPS", 1e9)
    model = make_model()
    build_demo(model)
    AnalysisService(model)
    assert [function.__qualname__ for function in host.functions] == ["LentGPU._run"]
    # Nobody waits for a GPU, or pays for it, where the processor is done at once.
    assert host.calls == []


@forking
@pytest.mark.parametrize("changes", [{}, {"pooling": "attention"}, {"rotary": True}])
def test_results_from_the_gpu_host_equal_those_of_the_processor(
    host: Host, make_model: Callable[..., Model], changes: dict[str, Any]
) -> None:
    model, reports = make_model(**changes), []
    for _ in range(2):
        expected = by(None, model)
        found = by(forward(), model, report=reports.append)
        assert_same(found, expected)
        assert (found.trace.pooled is None) == (expected.trace.pooled is None)
        assert torch.equal(found.rollout().values, expected.rollout().values)
        assert torch.equal(found.map("relevance").values, expected.map("relevance").values)
    assert reports == 2 * [Progress(0, 3), Progress(3, 3)]
    # The forked process already has the network.
    assert [network for _, _, network in host.calls] == [None, None]


@forking
def test_a_network_that_was_opened_later_is_sent_once(host: Host, make_model: Callable[..., Model]) -> None:
    first, second = make_model(), make_model()
    by(forward(), first)
    for model in (second, second, first, second):
        assert_same(by(forward(), model), by(None, model))
    sent = [network is not None for _, _, network in host.calls]
    # It is sent after a first call without it, and again after another network was used.
    assert sent == [False, False, True, False, False, False, True]
    host.end()
    assert_same(by(forward(), second), by(None, second))
    assert host.calls[-1][2] is None


@forking
def test_an_error_in_the_gpu_process_is_raised_here(host: Host, make_model: Callable[..., Model]) -> None:
    network = make_model().network
    for error, channels, storage in ((ConfigError, 3, "float3"), (ImageError, 4, None)):
        pixels = torch.zeros(1, channels, 16, 24)
        with pytest.raises(error) as expected:
            network.encode(pixels, storage)
        with pytest.raises(error, match=re.escape(str(expected.value))):
            forward()(network, pixels, storage)
    # A wrong request does not use the GPU.
    assert len(host.calls) == 1


def test_an_unavailable_gpu_is_reported_with_the_message_of_the_host(
    host: Host, make_model: Callable[..., Model]
) -> None:
    host.refusal = gr.Error("You have exceeded your quota. Try again in 1:00:00", title="ZeroGPU quota exceeded")
    with pytest.raises(LimitError, match=r"^ZeroGPU quota exceeded: You have exceeded your quota\. Try again in 1:00"):
        by(forward(), make_model())


def test_a_visitor_who_left_requests_no_gpu(host: Host, make_model: Callable[..., Model]) -> None:
    def stop(state: Progress) -> None:
        raise QueryError("stop")

    with pytest.raises(QueryError, match="stop"):
        by(forward(), make_model(), report=stop)
    assert host.calls == []
