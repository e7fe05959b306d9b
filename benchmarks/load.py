"""Many visitors at once, against the app in its own process: ``python -m benchmarks.load``.

Every visitor uploads their own picture, fetches the data of the explorer, opens their own model, returns to the bundled
one, and leaves; some leave halfway. What they are shown is compared with the library's results for their picture. They
come beside hostile visitors, and twice more without these. The memory of the app with all its processes must stay
within its budget and must have stopped growing, and no analysis of theirs may expire.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import httpx
import numpy as np

from benchmarks.hostile import ATTACKS
from benchmarks.load_guests import BUNDLED, Guest, guests, random_picture
from benchmarks.load_tally import BUDGET_BYTES, Tally, tables
from benchmarks.resident import resident_bytes
from benchmarks.visitor import LimitReachedError, Traffic, VisitError, Visitor

ROOT = Path(__file__).parents[1]
# One of this many visitors leaves while their model is being opened.
LEAVE_EVERY = 5
# How many pictures the visitor who is alone has analysed before their own.
ALONE_ANALYSES = 12
# The app's bound on files: less than one hostile visitor uploads.
FILES = "384 MiB"
ALONE, BESIDE, AMONG, AGAIN = "alone", "beside hostile visitors", "among themselves", "once more"
# The wait before memory is measured after a stage.
SETTLE_SECONDS = 5.0


OPTIONS = {
    "sessions": "visitors at once",
    "hostile": "of them, who mean harm",
    "arrive": "seconds over which they come",
    "think": "seconds of rest, on average",
    "most_seconds": "of everything",
    "most_requests": "of everything",
    "seed": "of pictures, models and rests",
}


class WrongPictureError(VisitError):
    """A visitor is shown the result of another picture or model."""


@dataclass(frozen=True)
class Plan:
    """The load and its bounds.

    Args:
        sessions: how many at once.
        hostile: how many of them are hostile; the others come once beside them, and twice more among themselves.
        attacks: of the hostile, by name; all if empty.
        arrive: seconds over which the visitors arrive.
        think: mean pause between two actions of a visitor, in seconds.
        most_seconds, most_requests: bounds of the whole measurement.
        seed: of pictures, models and pauses.
    """

    sessions: int = 50
    hostile: int = 10
    attacks: Sequence[str] = ()
    arrive: float = 10.0
    think: float = 1.0
    most_seconds: float = 600.0
    most_requests: int = 30_000
    seed: int = 0


async def measure(plan: Plan, on_stage: Callable[[str], None] = lambda line: None) -> Tally:
    """Start the app, run all stages, and return the tally; never longer than the plan allows."""
    tally, honest = Tally(), max(1, plan.sessions - plan.hostile)
    visitors, rests = guests(honest, plan.seed), random.Random(plan.seed)
    with _running_app(tally) as (address, process):
        traffic = Traffic(address, plan.most_requests, plan.most_seconds)
        wave = partial(_wave, traffic, visitors, plan, rests, tally)
        stages = {
            ALONE: partial(_alone, traffic, visitors[0], tally),
            BESIDE: partial(_beside_hostile, partial(wave, BESIDE), traffic, plan),
            AMONG: partial(wave, AMONG),
            AGAIN: partial(wave, AGAIN),
        }
        tally.memory_bytes["before"] = resident_bytes(process)
        try:
            for name, stage in stages.items():
                on_stage(name)
                watching = asyncio.create_task(_watch_memory(process, tally, name))
                await asyncio.wait_for(stage(), plan.most_seconds - traffic.seconds)
                watching.cancel()
                await asyncio.sleep(SETTLE_SECONDS)
                tally.memory_bytes[f"after {name}"] = resident_bytes(process)
        except (LimitReachedError, TimeoutError, asyncio.TimeoutError) as error:
            tally.errors.append(str(error) or f"{plan.most_seconds:g} seconds are spent")
        tally.requests, tally.seconds = traffic.requests, traffic.seconds
    return tally


async def _alone(traffic: Traffic, guest: Guest, tally: Tally) -> None:
    """One visitor, who uploads pictures one after another and has each analysed."""
    pictures = np.random.default_rng(1)
    async with _open_page(traffic, tally, guest) as visitor:
        for _ in range(ALONE_ANALYSES):
            await visitor.analyze(upload=await visitor.upload("another.png", random_picture(pictures)))
        await visitor.analyze(upload=await visitor.upload(guest.name, guest.picture))
        # The first analysis is slower, since it fills caches.
        tally.analyses[ALONE] = visitor.seconds["analyze"][1:]
        await _check(visitor, guest, BUNDLED, tally)


async def _wave(
    traffic: Traffic, visitors: Sequence[Guest], plan: Plan, rests: random.Random, tally: Tally, name: str
) -> None:
    async def come(number: int, guest: Guest) -> None:
        await asyncio.sleep(plan.arrive * number / len(visitors))
        async with _open_page(traffic, tally, guest) as visitor:
            await _visit(visitor, guest, number, plan, rests, tally, name)

    await asyncio.gather(*(come(*each) for each in enumerate(visitors)))


async def _beside_hostile(wave: Callable[[], Awaitable[None]], traffic: Traffic, plan: Plan) -> None:
    """A wave among hostile visitors, who go on until the others have left."""
    bounds = traffic.most_requests - traffic.requests, traffic.most_seconds - traffic.seconds
    hostile = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.hostile", traffic.address, str(plan.hostile), *map(str, bounds)),
        *plan.attacks,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert hostile.stdout is not None
        for _ in range(plan.hostile):
            await hostile.stdout.readline()
        await wave()
        output, _ = await hostile.communicate(b"")
        traffic.requests += int(output)
    finally:
        with suppress(ProcessLookupError):
            hostile.kill()
        await hostile.wait()


async def _visit(
    visitor: Visitor, guest: Guest, number: int, plan: Plan, rests: random.Random, tally: Tally, name: str = AMONG
) -> None:
    async def rest() -> None:
        await asyncio.sleep(plan.think * rests.uniform(0.5, 1.5))

    await rest()
    await visitor.analyze(upload=await visitor.upload(guest.name, guest.picture))
    tally.analyses.setdefault(name, []).append(visitor.seconds["analyze"][0])
    await _check(visitor, guest, BUNDLED, tally)
    await rest()
    own_model = {"files": [await visitor.upload("own.safetensors", guest.model_file)]}
    if number % LEAVE_EVERY == LEAVE_EVERY - 1:
        opening = asyncio.create_task(visitor.analyze(own=own_model))
        await asyncio.sleep(rests.uniform(0, 0.5))
        opening.cancel()
        await asyncio.wait([opening])
        return
    await visitor.analyze(own=own_model)
    await _check(visitor, guest, "own", tally)
    await rest()
    await visitor.analyze(model=BUNDLED)
    await _check(visitor, guest, BUNDLED, tally)


@asynccontextmanager
async def _open_page(traffic: Traffic, tally: Tally, guest: Guest) -> AsyncIterator[Visitor]:
    """A page, whose errors are recorded; the other visitors continue."""
    tally.open += 1
    tally.most_open = max(tally.most_open, tally.open)
    try:
        async with Visitor.visiting(traffic) as visitor:
            await visitor.run("open", link="")
            yield visitor
    except VisitError as error:
        tally.errors.append(f"{guest.name}: {error}")
    except httpx.HTTPError as error:
        tally.errors.append(f"{guest.name}: {type(error).__name__} at {error.request.url.path}: {error}")
    finally:
        tally.open -= 1


async def _check(visitor: Visitor, guest: Guest, model: str, tally: Tally) -> None:
    """Fetch the data of the explorer, and compare it with the library's.

    Raises:
        WrongPictureError: it is that of another picture or model.
        VisitError: it cannot be fetched.
    """
    prediction, (label, probability) = visitor.facts["predictions"][0], guest.predictions[model]
    if visitor.facts["name"] != guest.name:
        raise WrongPictureError(f"{model}: the page shows {visitor.facts['name']}")
    if prediction["label"] != label or abs(prediction["probability"] - probability) > 1e-4:
        raise WrongPictureError(f"{model}: {prediction}, expected {label} with {probability:.4f}")
    row = guest.rows[model]
    distance = row.distance(await _explorer_file(visitor, f"layer {row.layer}", tally))
    if not distance <= 1:
        raise WrongPictureError(f"{model}, layer {row.layer}: off by {distance:.3g} times what the format allows")
    tally.rows_checked += 1


async def _explorer_file(visitor: Visitor, name: str, tally: Tally) -> bytes:
    """A file of the explorer; like the page, it analyses once more if the analysis was evicted."""
    for _ in range(2):
        content = await visitor.file(name)
        if content is not None:
            return content
        tally.expired_count += 1
        await visitor.analyze()
    raise VisitError(f"{name}: its analysis expired twice")


@contextmanager
def _running_app(tally: Tally) -> Iterator[tuple[str, int]]:
    """Run the app; yields its address and process ID, and adds its output to the tally's log."""
    with TemporaryDirectory() as folder, TemporaryFile("w+") as output:
        # Another app may use the port of the variable GRADIO_SERVER_PORT.
        environment = {name: value for name, value in os.environ.items() if name != "GRADIO_SERVER_PORT"}
        environment |= {
            "GRADIO_TEMP_DIR": folder,
            "GRADIO_SERVER_NAME": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "VITVIZ_MEMORY_BYTES": str(BUDGET_BYTES),
            "VITVIZ_FILES_BYTES": FILES,
            # The visitors say their addresses as if by a proxy; whoever connects from another address is one visitor.
            "VITVIZ_TRUSTED_PROXIES": "127.0.0.1",
        }

        def log() -> str:
            return os.pread(output.fileno(), 2**24, 0).decode(errors="replace")

        command = [sys.executable, "-u", str(ROOT / "app.py")]
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT) as app:
            try:
                while not (address := re.search(r"http://127\.0\.0\.1:\d+", log())):
                    if app.poll() is not None:
                        raise VisitError(f"the app did not start: {log()[-400:]}")
                    time.sleep(0.1)
                yield address[0], app.pid
            finally:
                app.terminate()
                app.wait()
                tally.log += log().splitlines()


async def _watch_memory(process: int, tally: Tally, name: str) -> None:
    """Record the peak memory of the app during a stage."""
    while True:
        peak = max(tally.memory_bytes.get(f"most in {name}", 0), resident_bytes(process))
        tally.memory_bytes[f"most in {name}"] = peak
        # Seldom, since reading the memory takes processor time, too.
        await asyncio.sleep(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 if anything went wrong."""
    parser = argparse.ArgumentParser("python -m benchmarks.load", description=__doc__)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=(), help="of the hostile (default: all)")
    for name, text in OPTIONS.items():
        default = getattr(Plan, name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(default), default=default, help=f"{text} (default: %(default)s)")
    plan = Plan(**vars(parser.parse_args(arguments)))
    tally = asyncio.run(measure(plan, lambda name: print(f"{name} …", file=sys.stderr, flush=True)))
    print(tables(tally))
    return 0 if tally.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
