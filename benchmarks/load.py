"""Many visitors at once, against the app in a process of its own: ``python -m benchmarks.load``.

Every visitor uploads a picture of their own, fetches what the explorer draws from, opens a model of their own, goes
back to the bundled one, and leaves; some leave in the middle of it. What they are shown is held against what the
library computes of their picture. Others beside them mean harm. One of them then asks for a large analysis, while
another goes on with small ones. The memory of the app, with all processes that it starts, must stay within its budget.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import numpy as np

from benchmarks.hostile import harm, prepare
from benchmarks.load_guests import START, Guest, guests, random_picture
from benchmarks.load_tally import BUDGET, WAVES, Tally, printed
from benchmarks.resident import resident_bytes
from benchmarks.visitor import OverBoundError, Traffic, VisitError, Visitor

ROOT = Path(__file__).parents[1]
# Of so many visitors, one leaves while their model is being opened.
ONE_IN = 5
# Analyses of the visitor who is alone.
ALONE = 12
# Of analyses that the app keeps: less than one wave makes. Of pages it remembers as many as come in the first wave.
CACHE = "128 MiB"
# Seconds after the last visitor has left.
SETTLE = 5.0


class MixedUpError(Exception):
    """A visitor is shown what is not theirs."""


@dataclass(frozen=True)
class Plan:
    """How much is tried, and for how long at most.

    Args:
        sessions: at once, in the first wave; half as many in the second.
        hostile: of them, who mean harm.
        arrive: seconds over which they come.
        think: seconds that each rests between two things, on average.
        resolution: of the large analysis; None for none.
        most_seconds, most_requests: of everything.
        seed: of pictures, models and rests.
    """

    sessions: int = 50
    hostile: int = 10
    arrive: float = 10.0
    think: float = 1.0
    resolution: int | None = 1024
    most_seconds: float = 300.0
    most_requests: int = 8000
    seed: int = 0


async def measure(plan: Plan, say: Callable[[str], None] = lambda line: None) -> Tally:
    """Start the app, let the visitors come, and tell what was found; never longer than the plan allows."""
    tally, visitors = Tally(), guests(max(1, plan.sessions - plan.hostile), plan.seed)
    rests = random.Random(plan.seed)
    prepare()
    async with _served(tally, plan.sessions) as (address, process):
        traffic = Traffic(address, plan.most_requests, plan.most_seconds)
        stages: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("alone", partial(_alone, traffic, visitors[0], tally, "alone")),
        ]
        for number, part in enumerate(WAVES, 1):
            some = visitors[: max(1, round(part * (plan.sessions - plan.hostile)))]
            stages.append((f"wave {number}", partial(_wave, traffic, some, plan, rests, tally)))
            tally.visits.append(len(some))
            hostile = plan.hostile if number == 1 else 0
            stages[-1] = (f"wave {number}", partial(_beside_hostile, stages[-1][1], traffic, hostile, plan, tally))
        if plan.resolution is not None:
            stages.append(("beside a large one", partial(_beside_a_large_one, traffic, visitors[0], plan, tally)))
        tally.held["before"] = resident_bytes(process)
        try:
            for name, stage in stages:
                say(name)
                await asyncio.wait_for(_watched(stage(), process, tally, name), plan.most_seconds - traffic.seconds)
                await asyncio.sleep(SETTLE)
                tally.held[f"after {name}"] = resident_bytes(process)
            tally.busy = await _busy(process)
        except (OverBoundError, TimeoutError, asyncio.TimeoutError) as error:
            tally.stopped = str(error) or f"{plan.most_seconds:g} seconds are spent"
        tally.requests, tally.seconds = traffic.requests, traffic.seconds
    return tally


async def _alone(traffic: Traffic, guest: Guest, tally: Tally, name: str) -> None:
    """One visitor, who uploads one picture after the other; each is analysed."""
    pictures = np.random.default_rng(1)
    with _noted(tally, guest):
        async with _open_page(traffic, tally) as visitor:
            for _ in range(ALONE):
                await visitor.analyze(upload=await visitor.upload("another.png", random_picture(pictures)))
            await visitor.analyze(upload=await visitor.upload(guest.name, guest.picture))
            # The first fills what the others find there.
            tally.analyses[name] = visitor.seconds["analyze"][1:]
            await _check(visitor, guest, START, tally)


async def _wave(traffic: Traffic, visitors: Sequence[Guest], plan: Plan, rests: random.Random, tally: Tally) -> None:
    async def come(number: int, guest: Guest) -> None:
        await asyncio.sleep(plan.arrive * number / len(visitors))
        with _noted(tally, guest):
            await _visit(traffic, guest, number, plan, rests, tally)

    await asyncio.gather(*(come(*each) for each in enumerate(visitors)))


async def _beside_hostile(
    wave: Callable[[], Awaitable[None]], traffic: Traffic, count: int, plan: Plan, tally: Tally
) -> None:
    """A wave, among visitors who mean harm."""

    async def come(number: int) -> None:
        await asyncio.sleep(plan.arrive * number / count)
        # What the app answers them is no error of a visit.
        with suppress(VisitError, httpx.HTTPError):
            async with _open_page(traffic, tally) as visitor:
                await harm(visitor, number)

    await asyncio.gather(wave(), *(come(number) for number in range(count)))


async def _visit(traffic: Traffic, guest: Guest, number: int, plan: Plan, rests: random.Random, tally: Tally) -> None:
    async def rest() -> None:
        await asyncio.sleep(plan.think * rests.uniform(0.5, 1.5))

    async with _open_page(traffic, tally) as visitor:
        await rest()
        await visitor.analyze(upload=await visitor.upload(guest.name, guest.picture))
        tally.analyses.setdefault("together", []).append(visitor.seconds["analyze"][0])
        await _check(visitor, guest, START, tally)
        await rest()
        own = {"files": [await visitor.upload("own.safetensors", guest.own)]}
        if number % ONE_IN == ONE_IN - 1:
            opening = asyncio.create_task(visitor.analyze(own=own))
            await asyncio.sleep(rests.uniform(0, 0.5))
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await opening
            return
        await visitor.analyze(own=own)
        await _check(visitor, guest, "own", tally)
        await rest()
        await visitor.analyze(model=START)
        await _check(visitor, guest, START, tally)


async def _beside_a_large_one(traffic: Traffic, guest: Guest, plan: Plan, tally: Tally) -> None:
    """Small analyses while a large one is under way, whose visitor leaves when they are done."""
    with _noted(tally, guest):
        async with _open_page(traffic, tally) as visitor:
            large = asyncio.create_task(visitor.analyze(resolution=plan.resolution))
            await asyncio.sleep(1)
            await _alone(traffic, guest, tally, "beside a large one")
            if large.done():
                large.result()
                tally.slow = visitor.seconds["analyze"][0]
                if visitor.facts["resolution"] != plan.resolution:
                    raise VisitError(f"no analysis at {plan.resolution} pixels")
            large.cancel()
            with suppress(asyncio.CancelledError):
                await large


@contextmanager
def _noted(tally: Tally, guest: Guest) -> Iterator[None]:
    """What goes wrong for one visitor is written down, and the others go on."""
    try:
        yield
    except MixedUpError as error:
        tally.mixed.append(f"{guest.name}: {error}")
    except VisitError as error:
        tally.errors.append(f"{guest.name}: {error}")
    except httpx.HTTPError as error:
        tally.errors.append(f"{guest.name}: {type(error).__name__} at {error.request.url.path}: {error}")


@asynccontextmanager
async def _open_page(traffic: Traffic, tally: Tally) -> AsyncIterator[Visitor]:
    async with Visitor.visiting(traffic) as visitor:
        tally.open += 1
        tally.most_open = max(tally.most_open, tally.open)
        try:
            await visitor.run("open", link="")
            yield visitor
        finally:
            tally.open -= 1


async def _check(visitor: Visitor, guest: Guest, model: str, tally: Tally) -> None:
    """Fetch what the explorer draws from, and hold it against the library's own.

    Raises:
        MixedUpError: it is of another picture or model.
        VisitError: it is not to be had.
    """
    shown, best = visitor.facts, visitor.facts["predictions"][0]
    if shown["name"] != guest.name:
        raise MixedUpError(f"{model}: the page shows {shown['name']}")
    label, probability = guest.best[model]
    if best["label"] != label or abs(best["probability"] - probability) > 1e-4:
        raise MixedUpError(f"{model}: {best}, expected {label} with {probability:.4f}")
    for row in guest.shown[model]:
        distance = row.distance(await _pack(visitor, f"layer {row.layer}", tally))
        if not distance <= 1:
            raise MixedUpError(f"{model}, layer {row.layer}: off by {distance:.3g} times what the format allows")
        tally.checked += 1


async def _pack(visitor: Visitor, name: str, tally: Tally) -> bytes:
    """A file of the explorer; as the page does, once more where the analysis is not kept any more."""
    for _ in range(2):
        answer = await visitor.ask("file", uid=visitor.facts["uid"], name=name)
        if "path" in answer:
            return await visitor.fetch(answer["path"])
        if "refused" in answer:
            break
        tally.expired += 1
        await visitor.analyze()
    raise VisitError(f"{name}: {answer}")


@asynccontextmanager
async def _served(tally: Tally, pages: int) -> AsyncIterator[tuple[str, int]]:
    """The app, which remembers so many pages: its address and the number of its process.

    What it prints is in the tally's log.
    """
    with TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "GRADIO_TEMP_DIR": folder,
            "GRADIO_SERVER_NAME": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "VITVIZ_CACHE_BYTES": CACHE,
            "VITVIZ_MEMORY_BYTES": str(BUDGET),
            "VITVIZ_PAGES": str(pages),
        }
        # Another app may hold the port of this variable.
        environment.pop("GRADIO_SERVER_PORT", None)
        app = await asyncio.create_subprocess_exec(
            sys.executable,
            "-u",
            str(ROOT / "app.py"),
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def listen() -> None:
            assert app.stdout is not None
            async for line in app.stdout:
                tally.log.append(line.decode(errors="replace").rstrip())
                address = re.search(r"http://127\.0\.0\.1:\d+", tally.log[-1])
                if address and not found.done():
                    found.set_result(address[0])
            if not found.done():
                found.set_exception(VisitError("the app did not start: " + " ".join(tally.log[-3:])))

        listening = asyncio.create_task(listen())
        try:
            yield await asyncio.wait_for(found, 120), app.pid
        finally:
            with suppress(ProcessLookupError):
                app.terminate()
            await app.wait()
            await listening


async def _watched(stage: Awaitable[None], process: int, tally: Tally, name: str) -> None:
    """A stage, and the most memory that the app held during it."""
    running = asyncio.ensure_future(stage)
    most = 0
    try:
        while not running.done():
            most = max(most, resident_bytes(process))
            # Looking takes a part of the machine itself.
            await asyncio.wait([running], timeout=1)
        running.result()
    finally:
        running.cancel()
        tally.held[f"most in {name}"] = most


async def _busy(process: int) -> float:
    """Processors that a process keeps busy, over two seconds."""

    def spent() -> float:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = spent()
    await asyncio.sleep(2)
    return (spent() - before) / 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 where anything went wrong."""
    parser = argparse.ArgumentParser("python -m benchmarks.load", description=__doc__)
    parser.add_argument("--sessions", type=int, default=Plan.sessions, help="visitors at once (default: %(default)s)")
    parser.add_argument("--hostile", type=int, default=Plan.hostile, help="of them, who mean harm (%(default)s)")
    parser.add_argument("--arrive", type=float, default=Plan.arrive, help="seconds over which they come (%(default)s)")
    parser.add_argument("--think", type=float, default=Plan.think, help="seconds of rest, on average (%(default)s)")
    parser.add_argument("--resolution", type=int, default=Plan.resolution, help="of the large analysis (%(default)s)")
    parser.add_argument("--most-seconds", type=float, default=Plan.most_seconds, help="of everything (%(default)s)")
    parser.add_argument("--most-requests", type=int, default=Plan.most_requests, help="of everything (%(default)s)")
    parser.add_argument("--seed", type=int, default=Plan.seed, help="default: %(default)s")
    plan = Plan(**vars(parser.parse_args(arguments)))
    tally = asyncio.run(measure(plan, lambda name: print(f"{name} …", file=sys.stderr, flush=True)))
    print(printed(tally))
    return 0 if tally.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
