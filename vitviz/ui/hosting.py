"""Where the app runs: the processors that it may use, and a graphics card that is lent to it for one forward pass.

The host that lends is Hugging Face's ZeroGPU: it runs a function in a process forked from this one, the only one that
ever sees a card, and pickles what goes there and back. That process knows every network that was opened before it was
started, since memory is inherited; one that was opened later is sent to it once.
"""

from __future__ import annotations

import atexit
import io
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

import gradio as gr
import torch

from vitviz.analysis.costs import cost_of
from vitviz.attention.machine import control_groups
from vitviz.errors.kinds import ConfigError, LimitError, VitvizError
from vitviz.models.network import Encoding
from vitviz.models.vit import VisionTransformer
from vitviz.progress import Progress
from vitviz.ui.files import empty, own_folder

Forward = Callable[..., Encoding]
"""What runs a network: takes it, and then what :meth:`vitviz.VisionTransformer.encode` takes."""
Function = TypeVar("Function", bound=Callable[..., Any])

# By which Gradio is told where the files of the page lie.
FILES = "GRADIO_TEMP_DIR"
# By which the host says that it lends a card.
ZERO_GPU = "SPACES_ZERO_GPU"
CARD = "cuda"
# For which a card is asked: the weights' way to it and the forward pass of the largest input.
SECONDS = 20
# Of fewer floating-point operations, two cores are done in a second: sooner than there is a card, and at nobody's cost.
WORTH_A_CARD = 150e9


def prepare(threads: int | None = None) -> None:
    """What a process does once before it serves the app.

    It computes in so many threads, keeps the files of the page in a folder of its own, and leaves nothing of them
    behind, by whatever signal it is ended that can be answered.

    Raises:
        ConfigError: as :func:`limit_threads`.
    """
    limit_threads(threads)
    if not os.environ.get(FILES):
        # In the one that Gradio shares, what one process deletes another may be serving.
        folder = own_folder()
        os.environ[FILES] = str(folder)
        atexit.register(empty, folder)
    # Signals can be answered there only.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: _end())


def _end() -> None:
    """End as a service is ended: nobody waits for what is being computed."""
    # Another one in the middle would begin again, and wait for locks that this one holds.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    atexit._run_exitfuncs()
    os._exit(0)


def processors(root: Path = Path("/")) -> int:
    """How many processors this process may use, at least 1.

    As many as it may be put on, or as the control groups that it is in have a quota for. Of a quota that is not whole
    the rest is dropped: with one thread more, all of them, the server's too, would stand still at the end of every
    period.

    Args:
        root: of the file system in which the control groups are looked up.
    """
    # Not on every system.
    affinity = getattr(os, "sched_getaffinity", None)
    here = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min([here, *(int(quota) for quota in _quotas(root))]))


def limit_threads(threads: int | None = None) -> int:
    """Have torch compute in so many threads; returns how many.

    Args:
        threads: how many; where it is not given, as torch is set up already, but no more than :func:`processors`.

    Raises:
        ConfigError: it is no positive number.
    """
    if threads is not None and threads < 1:
        raise ConfigError(f"threads = {threads!r}: expected a whole number of at least 1")
    # Torch counts the cores of the host, and of two threads that share a core only one.
    count = threads if threads is not None else min(torch.get_num_threads(), processors())
    torch.set_num_threads(count)
    # Cannot be changed once these have started.
    with suppress(RuntimeError):
        torch.set_num_interop_threads(count)
    return count


def on_gpu(function: Function) -> Function:
    """The function as the host wants it where it lends a card for each call; elsewhere the function itself."""
    if not _lends():
        return function
    # Installed by the host, and never looked for elsewhere.
    lent: Function = import_module("spaces").GPU(function, duration=SECONDS)
    return lent


@cache
def forward() -> Forward:
    """What runs a network here; asked for before the app is launched, when the host looks for what needs a card."""
    return Lent().encode if _lends() else VisionTransformer.encode


class Lent:
    """Forward passes on a card that is lent for each; everything else stays on the processor, gradients included."""

    def __init__(self) -> None:
        # A number is never given twice, so that no process takes one network for another.
        self._count = itertools.count()
        self._numbers: WeakKeyDictionary[VisionTransformer, int] = WeakKeyDictionary()
        self._known: WeakValueDictionary[int, VisionTransformer] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._on_card: VisionTransformer | None = None
        self._there = on_gpu(self._run)

    def encode(
        self,
        network: VisionTransformer,
        pixels: torch.Tensor,
        storage: str | None = None,
        keep_bytes: int = 0,
        report: Callable[[Progress], None] | None = None,
    ) -> Encoding:
        """What :meth:`vitviz.VisionTransformer.encode` gives, by a card where it is worth the way there.

        Args:
            network: on the processor, and left there.
            pixels, storage, keep_bytes: as that takes them.
            report: called after every layer, on a lent card before the first and after the last alone; an exception
                that it raises ends the call, before a card is asked for.

        Raises:
            ImageError, ConfigError: as that.
            LimitError: the host lends no card now; the message is the host's.
        """
        layout, depth = network.config.layout(*pixels.shape[-2:]), network.config.depth
        if cost_of(network.config, layout, len(pixels), storage).flops < WORTH_A_CARD:
            return network.encode(pixels, storage, keep_bytes, report)
        if report is not None:
            report(Progress(0, depth))
        number, request = self._number(network), _packed((pixels, storage, keep_bytes))
        answer = self._ask(number, request)
        if answer is None:
            answer = self._ask(number, request, _packed(network))
        assert answer is not None
        found: Encoding | Exception = _unpacked(answer, "cpu")
        if isinstance(found, Exception):
            raise found
        if report is not None:
            report(Progress(depth, depth))
        return found

    def _number(self, network: VisionTransformer) -> int:
        """By which a process that was forked later knows the network."""
        with self._lock:
            if network not in self._numbers:
                self._numbers[network] = next(self._count)
                self._known[self._numbers[network]] = network
            return self._numbers[network]

    def _ask(self, number: int, request: bytes, network: bytes | None = None) -> bytes | None:
        try:
            return self._there(number, request, network)
        # What the host has to say to a visitor, such as that all of today's time is used.
        except gr.Error as error:
            raise LimitError(f"{getattr(error, 'title', 'Error')}: {error.message}") from None

    def _run(self, number: int, request: bytes, sent: bytes | None) -> bytes | None:
        """The forward pass, in the process with the card; None where it does not know the network.

        Bytes come and go, since the host's queue would hand tensors over in shared memory, which is small in a
        container and takes an open file for each. Errors go the same way: of others the host keeps the name alone.
        """
        network = self._known.get(number) if sent is None else _unpacked(sent, CARD)
        if network is None:
            return None
        self._known[number] = network
        try:
            self._bring(network)
            with torch.inference_mode():
                return _packed(network.encode(*_unpacked(request, CARD)))
        except (VitvizError, MemoryError, torch.OutOfMemoryError) as error:
            return _packed(error)

    def _bring(self, network: VisionTransformer) -> None:
        """Have the network on the card, and no other: one that was sent is gone then, one that was inherited is not."""
        if self._on_card is not None and self._on_card is not network:
            self._on_card.to("cpu")
        self._on_card = network.to(CARD)


def _lends() -> bool:
    return os.environ.get(ZERO_GPU, "").lower() in ("1", "t", "true")


def _packed(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _unpacked(content: bytes, device: str) -> Any:
    # Nobody but the two processes writes it, so that more than tensors may be in it.
    return torch.load(io.BytesIO(content), map_location=device, weights_only=False)


def _quotas(root: Path) -> Iterator[float]:
    """Of all control groups that the process is in, where they have one, in processors."""
    for group in control_groups(root, "cpu"):
        quota = _quota(group)
        if quota is not None:
            yield quota


def _quota(group: Path) -> float | None:
    """Of one control group; None where there is none, or no such group to be seen from inside the container."""
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
