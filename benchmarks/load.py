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
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

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


class WrongPictureError(Exception):
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
    async with _running_app(tally) as (address, process):
        traffic = Traffic(address, plan.most_requests, plan.most_seconds)
        wave = partial(_wave, traffic, visitors, plan, rests, tally)
        stages = {
            ALONE: partial(_alone, traffic, visitors[0], tally),
            BESIDE: partial(_beside_hostile, partial(wave, BESIDE), traffic, plan, tally),
            AMONG: partial(wave, AMONG),
            AGAIN: partial(wave, AGAIN),
        }
        tally.memory_bytes["before"] = resident_bytes(process)
        try:
            for name, stage in stages.items():
                on_stage(name)
                await asyncio.wait_for(
                    _watch_memory(stage(), process, tally, name), plan.most_seconds - traffic.seconds
                )
                await asyncio.sleep(SETTLE_SECONDS)
                tally.memory_bytes[f"after {name}"] = resident_bytes(process)
        except (LimitReachedError, TimeoutError, asyncio.TimeoutError) as error:
            tally.limit_error = str(error) or f"{plan.most_seconds:g} seconds are spent"
        tally.requests, tally.seconds = traffic.requests, traffic.seconds
    return tally


async def _alone(traffic: Traffic, guest: Guest, tally: Tally) -> None:
    """One visitor, who uploads pictures one after another and has each analysed."""
    pictures = np.random.default_rng(1)
    with _record_errors(tally, guest):
        async with _open_page(traffic, tally) as visitor:
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
        with _record_errors(tally, guest):
            await _visit(traffic, guest, number, plan, rests, tally, name)

    await asyncio.gather(*(come(*each) for each in enumerate(visitors)))


async def _beside_hostile(wave: Callable[[], Awaitable[None]], traffic: Traffic, plan: Plan, tally: Tally) -> None:
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
            tally.open += 1
        await wave()
        output, _ = await hostile.communicate(b"")
        traffic.requests += int(output)
        tally.open -= plan.hostile
    finally:
        with suppress(ProcessLookupError):
            hostile.kill()
        await hostile.wait()


async def _visit(
    traffic: Traffic, guest: Guest, number: int, plan: Plan, rests: random.Random, tally: Tally, name: str = AMONG
) -> None:
    async def rest() -> None:
        await asyncio.sleep(plan.think * rests.uniform(0.5, 1.5))

    async with _open_page(traffic, tally) as visitor:
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
            with suppress(asyncio.CancelledError):
                await opening
            return
        await visitor.analyze(own=own_model)
        await _check(visitor, guest, "own", tally)
        await rest()
        await visitor.analyze(model=BUNDLED)
        await _check(visitor, guest, BUNDLED, tally)


@contextmanager
def _record_errors(tally: Tally, guest: Guest) -> Iterator[None]:
    """Record the errors of one visitor; the other visitors continue."""
    try:
        yield
    except WrongPictureError as error:
        tally.wrong_pictures.append(f"{guest.name}: {error}")
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
    """Fetch the data of the explorer, and compare it with the library's.

    Raises:
        WrongPictureError: it is that of another picture or model.
        VisitError: it cannot be fetched.
    """
    facts, prediction = visitor.facts, visitor.facts["predictions"][0]
    if facts["name"] != guest.name:
        raise WrongPictureError(f"{model}: the page shows {facts['name']}")
    label, probability = guest.predictions[model]
    if prediction["label"] != label or abs(prediction["probability"] - probability) > 1e-4:
        raise WrongPictureError(f"{model}: {prediction}, expected {label} with {probability:.4f}")
    for row in guest.rows[model]:
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


@asynccontextmanager
async def _running_app(tally: Tally) -> AsyncIterator[tuple[str, int]]:
    """Run the app; yields its address and process ID, and appends its output to the tally's log."""
    with TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "GRADIO_TEMP_DIR": folder,
            "GRADIO_SERVER_NAME": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "VITVIZ_MEMORY_BYTES": str(BUDGET_BYTES),
            "VITVIZ_FILES_BYTES": FILES,
            # The visitors say their addresses as if by a proxy; whoever connects from another address is one visitor.
            "VITVIZ_TRUSTED_PROXIES": "127.0.0.1",
        }
        # Another app may use the port of this variable.
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
        address_future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def listen() -> None:
            assert app.stdout is not None
            async for line in app.stdout:
                tally.log.append(line.decode(errors="replace").rstrip())
                address = re.search(r"http://127\.0\.0\.1:\d+", tally.log[-1])
                if address and not address_future.done():
                    address_future.set_result(address[0])
            if not address_future.done():
                address_future.set_exception(VisitError("the app did not start: " + " ".join(tally.log[-3:])))

        listening = asyncio.create_task(listen())
        try:
            yield await asyncio.wait_for(address_future, 120), app.pid
        finally:
            with suppress(ProcessLookupError):
                app.terminate()
            await app.wait()
            await listening


async def _watch_memory(stage: Awaitable[None], process: int, tally: Tally, name: str) -> None:
    """Run a stage, and record the peak memory of the app during it."""
    task = asyncio.ensure_future(stage)
    peak_bytes = 0
    try:
        while not task.done():
            peak_bytes = max(peak_bytes, resident_bytes(process))
            # Poll seldom, since reading the memory takes processor time, too.
            await asyncio.wait([task], timeout=1)
        task.result()
    finally:
        task.cancel()
        tally.memory_bytes[f"most in {name}"] = peak_bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 1 if anything went wrong."""
    parser = argparse.ArgumentParser("python -m benchmarks.load", description=__doc__)
    parser.add_argument("--sessions", type=int, default=Plan.sessions, help="visitors at once (default: %(default)s)")
    parser.add_argument("--hostile", type=int, default=Plan.hostile, help="of them, who mean harm (%(default)s)")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=(), help="theirs (default: all)")
    parser.add_argument("--arrive", type=float, default=Plan.arrive, help="seconds over which they come (%(default)s)")
    parser.add_argument("--think", type=float, default=Plan.think, help="seconds of rest, on average (%(default)s)")
    parser.add_argument("--most-seconds", type=float, default=Plan.most_seconds, help="of everything (%(default)s)")
    parser.add_argument("--most-requests", type=int, default=Plan.most_requests, help="of everything (%(default)s)")
    parser.add_argument("--seed", type=int, default=Plan.seed, help="default: %(default)s")
    plan = Plan(**vars(parser.parse_args(arguments)))
    tally = asyncio.run(measure(plan, lambda name: print(f"{name} …", file=sys.stderr, flush=True)))
    print(tables(tally))
    return 0 if tally.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
