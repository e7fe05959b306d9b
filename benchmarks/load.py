"""Many visitors at once, against the app in its own process: ``python -m benchmarks.load``.

Every visitor uploads their own picture, fetches the data of the explorer, asks for a smaller input, returns to the
first one, and leaves; some leave halfway. What they are shown is compared with the library's results for their picture.
They come beside hostile visitors, and twice more without these. The memory of the app with all its processes must stay
within its budget and must have stopped growing, and no analysis of theirs may expire.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory, TemporaryFile

import httpx
import numpy as np
import psutil

from benchmarks.hostile import ATTACKS, attack
from benchmarks.load_guests import SMALLER, Guest, deviation, guests, random_picture
from benchmarks.load_tally import ALONE, BUDGET_BYTES, Tally, tables
from benchmarks.visitor import LimitReachedError, Traffic, VisitError, Visitor
from tests.driver import app_process

# One of this many visitors leaves while their model is being opened.
LEAVE_EVERY = 5
# How many pictures the visitor who is alone has analysed before their own.
ALONE_ANALYSES = 12
BESIDE, AMONG, AGAIN = "beside hostile visitors", "among themselves", "once more"
# The wait before memory is measured after a stage.
SETTLE_SECONDS = 5.0
# Hostile visitors come from a process of their own, which may take so long to start.
READY_SECONDS = 60.0
PROCESSES = multiprocessing.get_context("spawn")
ENVIRONMENT = {
    "GRADIO_SERVER_NAME": "127.0.0.1",
    "HF_HUB_OFFLINE": "1",
    "VITVIZ_MEMORY_BYTES": str(BUDGET_BYTES),
    # Less than one hostile visitor uploads.
    "VITVIZ_FILES_BYTES": "384 MiB",
    # The visitors say their addresses as if by a proxy; whoever connects from another address is one visitor.
    "VITVIZ_TRUSTED_PROXIES": "127.0.0.1",
}
OPTIONS = {
    "sessions": (50, "visitors at once"),
    "hostile": (10, "of them, who mean harm; the others come once beside them, and twice more among themselves"),
    "arrive": (10.0, "seconds over which they come"),
    "think": (1.0, "seconds of rest, on average"),
    "most_seconds": (600.0, "of everything"),
    "most_requests": (30_000, "of everything"),
    "seed": (0, "of pictures, models and rests"),
}


async def measure(plan: Namespace, on_stage: Callable[[str], None] = lambda line: None) -> Tally:
    """Start the app, run all stages, and return the tally; never longer than the plan allows."""
    tally, visitors = Tally(), guests(max(1, plan.sessions - plan.hostile), plan.seed)
    random.seed(plan.seed)
    with TemporaryDirectory() as folder, TemporaryFile("w+") as output:
        with app_process({**os.environ, **ENVIRONMENT, "GRADIO_TEMP_DIR": folder}, output) as (address, process):
            app, traffic = psutil.Process(process.pid), Traffic(address, PROCESSES.Semaphore(plan.most_requests))
            stages = {
                ALONE: partial(_alone, traffic, visitors[0], tally),
                BESIDE: partial(_beside_hostile, traffic, visitors, plan, tally),
                AMONG: partial(_wave, traffic, visitors, plan, tally, AMONG),
                AGAIN: partial(_wave, traffic, visitors, plan, tally, AGAIN),
            }
            tally.memory_bytes["before"] = resident_bytes(app)
            deadline = time.monotonic() + plan.most_seconds
            try:
                for name, stage in stages.items():
                    on_stage(name)
                    watching = asyncio.create_task(_watch_memory(app, tally, f"most in {name}"))
                    await asyncio.wait_for(stage(), deadline - time.monotonic())
                    watching.cancel()
                    await asyncio.sleep(SETTLE_SECONDS)
                    tally.memory_bytes[f"after {name}"] = resident_bytes(app)
            except (LimitReachedError, TimeoutError, asyncio.TimeoutError) as error:
                tally.errors.append(str(error) or f"{plan.most_seconds:g} seconds are spent")
        output.seek(0)
        tally.log += output.read().splitlines()
    return tally


async def _alone(traffic: Traffic, guest: Guest, tally: Tally) -> None:
    """One visitor, who uploads pictures one after another and has each analysed."""
    pictures = np.random.default_rng(1)
    async with _open_page(traffic, tally, guest) as visitor:
        # The first analysis is slower, since it fills caches.
        await visitor.analyze(upload=await visitor.upload("another.png", random_picture(pictures)))
        for _ in range(ALONE_ANALYSES - 1):
            await _show(visitor, "another.png", random_picture(pictures), tally, ALONE)
        await _show(visitor, guest.name, guest.picture, tally, ALONE)
        await _check(visitor, guest, None, tally)


async def _wave(traffic: Traffic, visitors: Sequence[Guest], plan: Namespace, tally: Tally, name: str) -> None:
    async def come(number: int, guest: Guest) -> None:
        await asyncio.sleep(plan.arrive * number / len(visitors))
        async with _open_page(traffic, tally, guest) as visitor:
            await _visit(visitor, guest, number, plan, tally, name)

    await asyncio.gather(*(come(*each) for each in enumerate(visitors)))


async def _beside_hostile(traffic: Traffic, visitors: Sequence[Guest], plan: Namespace, tally: Tally) -> None:
    """A wave among hostile visitors, who go on until the others have left."""
    ready, names = PROCESSES.Semaphore(0), plan.attacks or tuple(ATTACKS)
    arguments = replace(traffic, network="127.2", visitors=0), plan.hostile, names, ready
    hostile = PROCESSES.Process(target=attack, args=arguments, daemon=True)
    hostile.start()
    try:
        for _ in range(plan.hostile):
            if not await asyncio.to_thread(ready.acquire, timeout=READY_SECONDS):
                raise LimitReachedError("a hostile visitor did not come")
        await _wave(traffic, visitors, plan, tally, BESIDE)
    finally:
        hostile.kill()
        hostile.join()


async def _visit(visitor: Visitor, guest: Guest, number: int, plan: Namespace, tally: Tally, name: str = AMONG) -> None:
    async def rest() -> None:
        await asyncio.sleep(plan.think * random.uniform(0.5, 1.5))

    await rest()
    await _show(visitor, guest.name, guest.picture, tally, name)
    await _check(visitor, guest, None, tally)
    await rest()
    if number % LEAVE_EVERY == LEAVE_EVERY - 1:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(visitor.analyze(resolution=SMALLER), random.uniform(0, 0.5))
        return
    await visitor.analyze(resolution=SMALLER)
    await _check(visitor, guest, SMALLER, tally)
    await rest()
    await visitor.analyze(resolution=None)
    await _check(visitor, guest, None, tally)


async def _show(visitor: Visitor, name: str, picture: bytes, tally: Tally, stage: str) -> None:
    """Upload a picture, have it analysed and fetch a layer of it, with how long each takes."""
    times = [time.monotonic()]
    upload = await visitor.upload(name, picture)
    times.append(time.monotonic())
    await visitor.analyze(upload=upload)
    times.append(time.monotonic())
    await visitor.file("layer 0")
    times.append(time.monotonic())
    spans = {"analysis": times[2] - times[1], "upload to map": times[3] - times[0], "layer": times[3] - times[2]}
    for kind, seconds in spans.items():
        tally.times.setdefault((kind, stage), []).append(seconds)


@asynccontextmanager
async def _open_page(traffic: Traffic, tally: Tally, guest: Guest) -> AsyncIterator[Visitor]:
    """A page, whose errors are recorded; the other visitors continue."""
    try:
        async with Visitor.visiting(traffic) as visitor:
            await visitor.run("open", link="")
            yield visitor
    except VisitError as error:
        tally.errors.append(f"{guest.name}: {error}")
    except httpx.HTTPError as error:
        tally.errors.append(f"{guest.name}: {type(error).__name__} at {error.request.url.path}: {error}")


async def _check(visitor: Visitor, guest: Guest, pixels: int | None, tally: Tally) -> None:
    """Fetch the data of the explorer, and compare it with the library's.

    Raises:
        VisitError: it is that of another picture or input, cannot be fetched, or has expired.
    """
    name, shown = visitor.facts["name"], visitor.facts["predictions"][0]
    analysis = guest.analyses[pixels]
    best, trace = analysis.predictions(1)[0], analysis.trace
    if (name, shown["label"]) != (guest.name, best.label) or abs(shown["probability"] - best.probability) > 1e-4:
        raise VisitError(f"{pixels}: {shown} of {name}, expected {best}")
    layer, head, token = map(random.randrange, (trace.layers, trace.heads, trace.layout.token_count))
    distance = deviation(await visitor.file(f"layer {layer}"), analysis, layer, head, token)
    if not distance <= 1:
        raise VisitError(f"{pixels}, layer {layer}: off by {distance:.3g} times what the format allows")
    tally.rows_checked += 1


def resident_bytes(app: psutil.Process) -> int:
    """Memory in bytes of a process and its descendants; pages that they share count once. Linux only."""
    found = 0
    for process in (app, *app.children(recursive=True)):
        # A process may end meanwhile.
        with suppress(psutil.Error):
            found += process.memory_full_info().pss
    return found


async def _watch_memory(app: psutil.Process, tally: Tally, name: str) -> None:
    """Record the peak memory of the app during a stage."""
    while True:
        tally.memory_bytes[name] = max(tally.memory_bytes.get(name, 0), resident_bytes(app))
        # Seldom, since reading the memory takes processor time, too.
        await asyncio.sleep(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 if anything went wrong."""
    parser = ArgumentParser("python -m benchmarks.load", description=__doc__)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=(), help="of the hostile (default: all)")
    for name, (default, text) in OPTIONS.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), default=default, help=f"{text} (default: %(default)s)")
    # A search for garbage in all that the visitors import would count as the app's time.
    gc.freeze()
    tally = asyncio.run(
        measure(parser.parse_args(arguments), lambda name: print(f"{name} …", file=sys.stderr, flush=True))
    )
    print(tables(tally))
    return 0 if tally.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
