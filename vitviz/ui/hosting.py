"""The machine of the app: its processors, and a GPU that is lent for single forward passes.

The lender is Hugging Face's ZeroGPU. It runs a function in a process forked from this one, which alone sees the GPU,
and pickles arguments and result. The fork inherits the networks that are in memory; a network that is opened later is
sent to it once.
"""

from __future__ import annotations

import atexit
import io
import itertools
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import gradio as gr
import torch

from vitviz.analysis.costs import cost_of
from vitviz.attention.precision import Precision
from vitviz.errors.kinds import LimitError, VitvizError
from vitviz.models.network import Encoding, Network
from vitviz.models.vit import VisionTransformer
from vitviz.progress import Progress
from vitviz.system.machine import control_groups
from vitviz.ui.server.visitor_files import FILES, TEMPORARY, discard, own_folder
from vitviz.worker import hide_memory, require_forks

Forward = Callable[..., Encoding]
"""Runs a network: takes it, and then the arguments of :meth:`vitviz.VisionTransformer.encode`."""

# The variable with the folder of visitors' files.
GRADIO_FILES = "GRADIO_TEMP_DIR"
# The variable that ZeroGPU sets.
ZERO_GPU = "SPACES_ZERO_GPU"
GPU = "cuda"
# The time of a loan: moving the weights, and a forward pass of the largest input.
LOAN_SECONDS = 20
# Two cores take a second for fewer operations: less than waiting for a GPU, and without using up anybody's loans.
MIN_GPU_FLOPS = 150e9


def set_up_process(threads: int | None = None, memory_bytes: int | None = None) -> None:
    """Set up the process that serves the app, once.

    It gets its number of threads, a limit of memory, and a folder for visitors' files and everything temporary, which
    is emptied at the end, whichever signal ends the process but SIGKILL.

    Raises:
        ConfigError: as :func:`vitviz.worker.require_forks`.
    """
    require_forks()
    hide_memory()
    limit_threads(threads)
    if memory_bytes is not None:
        limit_memory(memory_bytes)
    # In a shared folder, one process may delete files that another is serving.
    folder = own_folder(Path(os.environ.get(GRADIO_FILES) or tempfile.gettempdir()))
    os.environ[GRADIO_FILES] = str(folder / FILES)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / TEMPORARY)
    atexit.register(discard, folder)
    # Python handles signals in the main thread only.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: _end(folder))


def _end(folder: Path) -> None:
    """Exit at once, without waiting for computations, answers or the fork server, which ends with this process."""
    # A second signal would run this again, and wait for locks that the first run holds.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    discard(folder)
    os._exit(0)


def processors(root: Path = Path("/")) -> int:
    """The number of processors that this process may use, at least 1.

    The scheduler's affinity and the quotas of the control groups limit it. A quota is rounded down: with one thread
    more, all threads, the server's too, would stand still at the end of every period.

    Args:
        root: of the file system with the control groups.
    """
    # Not every system has it.
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quotas = [quota for group in control_groups(root, "cpu") if (quota := _quota(group)) is not None]
    return max(1, min([count, *map(int, quotas)]))


def limit_threads(threads: int | None = None) -> int:
    """Set torch's number of threads, and return it.

    Args:
        threads: the number; by default torch's own, but no more than :func:`processors`.
    """
    # Torch counts the host's cores, and one of two threads that share a core.
    count = threads if threads is not None else min(torch.get_num_threads(), processors())
    torch.set_num_threads(count)
    # It cannot be changed once these threads have started.
    with suppress(RuntimeError):
        torch.set_num_interop_threads(count)
    return count


def limit_memory(nbytes: int) -> None:
    """Have the system refuse what this process needs above a limit; a line refuses new work before.

    Only Linux enforces it. A driver of graphics cards reserves far more than it uses, so there is no limit beside one.
    """
    if not sys.platform.startswith("linux") or torch.cuda.is_available():
        return
    # Not on every system.
    import resource

    pages = [int(count) for count in Path("/proc/self/statm").read_text().split()]
    # The limit counts the reserved bytes, of which some, such as the stacks of threads, are never used.
    unused = (pages[5] - pages[1]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes + unused, hard))


@cache
def forward() -> Forward | None:
    """What runs networks here in place of their own ``encode``, if anything.

    Call it before the launch, when the host looks for what needs a GPU.
    """
    lends = os.environ.get(ZERO_GPU, "").lower() in ("1", "t", "true")
    return LentGPU().encode if lends else None


class LentGPU:
    """Forward passes on a GPU that is lent for each; everything else, gradients included, stays on the processor."""

    def __init__(self) -> None:
        # Numbers are unique, so that no process mistakes one network for another.
        self._count = itertools.count()
        self._numbers: WeakKeyDictionary[VisionTransformer, int] = WeakKeyDictionary()
        self._networks: WeakValueDictionary[int, VisionTransformer] = WeakValueDictionary()
        self._on_gpu: VisionTransformer | None = None
        # The host installs this package; it is never imported elsewhere.
        self._run_there = import_module("spaces").GPU(self._run, duration=LOAN_SECONDS)

    def encode(
        self,
        network: Network,
        pixels: torch.Tensor,
        storage: Precision | None = None,
        keep_bytes: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> Encoding:
        """:meth:`vitviz.VisionTransformer.encode`, on a GPU if the pass is large enough.

        Args:
            network: on the processor, where it stays, as a watched module does during its passes.
            pixels, storage, keep_bytes: of ``encode``.
            report: called after every layer, or, with a GPU, before the first and after the last; an exception that it
                raises ends the call before a GPU is borrowed.

        Raises:
            ImageError, ConfigError: as ``encode``.
            LimitError: the host lends no GPU now; the message is the host's.
        """
        layout, depth = network.config.layout(*pixels.shape[-2:]), network.config.depth
        flops = cost_of(network.config, layout, len(pixels), storage).flops
        if flops < MIN_GPU_FLOPS or not isinstance(network, VisionTransformer):
            return network.encode(pixels, storage, keep_bytes, report)
        if report is not None:
            report(Progress(0, depth))
        number, request = self._numbers.setdefault(network, next(self._count)), _packed((pixels, storage, keep_bytes))
        # A later fork knows the network by it.
        self._networks[number] = network
        answer = self._ask(number, request)
        if answer is None:
            answer = self._ask(number, request, _packed(network))
        assert answer is not None
        result: Encoding | Exception = _unpacked(answer, "cpu")
        if isinstance(result, Exception):
            raise result
        if report is not None:
            report(Progress(depth, depth))
        return result

    def _ask(self, number: int, request: bytes, network: bytes | None = None) -> bytes | None:
        try:
            answer: bytes | None = self._run_there(number, request, network)
            return answer
        # A message of the host to the visitor, such as that today's quota is used up.
        except gr.Error as error:
            raise LimitError(f"{getattr(error, 'title', 'Error')}: {error.message}") from None

    def _run(self, number: int, request: bytes, packed_network: bytes | None) -> bytes | None:
        """The forward pass, in the process with the GPU; None if that process does not have the network.

        Arguments and results are bytes: the host's queue would pass tensors in shared memory, which is small in a
        container and takes an open file each. Errors are results, too: of an exception, the host keeps only the name.
        """
        network = self._networks.get(number) if packed_network is None else _unpacked(packed_network, GPU)
        if network is None:
            return None
        self._networks[number] = network
        try:
            self._move_to_gpu(network)
            with torch.inference_mode():
                return _packed(network.encode(*_unpacked(request, GPU)))
        except (VitvizError, MemoryError, torch.OutOfMemoryError) as error:
            return _packed(error)

    def _move_to_gpu(self, network: VisionTransformer) -> None:
        """Put the network on the GPU in the place of the previous one."""
        if self._on_gpu is not None and self._on_gpu is not network:
            self._on_gpu.to("cpu")
        self._on_gpu = network.to(GPU)


def _packed(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _unpacked(content: bytes, device: str) -> Any:
    # Only these two processes write it, so that it may be unpickled.
    return torch.load(io.BytesIO(content), map_location=device, weights_only=False)


def _quota(group: Path) -> float | None:
    """The quota of a control group in processors; None if it has none, or is not visible inside the container."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
