"""What is kept for visitors up to a bound, and who loses first."""

from __future__ import annotations

import re

import pytest

from vitviz.ui.fair_store import FairStore


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only item."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_who_sends_most_takes_from_nobody_else() -> None:
    store: FairStore[str] = FairStore(10)
    theirs = [store.key(f"{visitor}'s {number}", visitor) for visitor in ("anna", "ben") for number in range(2)]
    for number in range(1000):
        store.key(f"flood {number}", "mallory")
    assert len(store) == 10 and all(key in store for key in theirs)


def test_the_least_recently_used_of_the_largest_goes_first() -> None:
    store: FairStore[str] = FairStore(10)
    assert [store.put(name, name, "anna", 3) for name in "abc"] == [[], [], []]
    assert store.get("a") == "a"
    assert store.put("d", "d", "ben", 4) == ["b"] and store.size == 10
    assert store.grow("d", 1) == ["c"] and store.grow("d", 3) == ["d"] and store.size == 3
    assert store.get("d") is None
    with pytest.raises(KeyError):
        store.grow("d", 1)
    assert store.put("e", "e", "ben", 11) == ["e"]


def test_a_key_says_nothing_of_what_others_have() -> None:
    store: FairStore[str] = FairStore(10)
    key = store.key("same", "anna")
    assert re.fullmatch(r"[\w-]{22}", key)
    assert store.key("same", "anna") == key != store.key("same", "ben")
    store.drop(key)
    assert store.get(key) is None and store.key("same", "anna") != key


def test_what_nobody_uses_is_dropped_after_a_while(clock: list[float]) -> None:
    store: FairStore[str] = FairStore(10)
    for name in "ab":
        store.put(name, name, "anna")
    clock[0] += 50
    store.get("a")
    clock[0] += 10
    assert store.drop_unused(60) == ["b"] and store.drop_unused(60) == []
    clock[0] += 50
    assert store.drop_unused(60) == ["a"] and store.size == 0
