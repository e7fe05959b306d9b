"""Properties that are computed once: one visitor's gradients or far look wait for no other's."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread

from tests.support.waiting import HANG_SECONDS
from vitviz.caching import cached_property


@dataclass
class Work:
    other: Work | None = None
    times: int = 0

    @cached_property
    def is_done(self) -> bool:
        self.times += 1
        thread = Thread(target=lambda: self.other and self.other.is_done, daemon=True)
        thread.start()
        thread.join(HANG_SECONDS)
        return not thread.is_alive()


def test_one_is_computed_while_another_is_and_each_once() -> None:
    work = Work(Work())
    assert work.is_done and work.is_done and work.times == 1
