"""Changes to a file that is a list of units: segments, chunks, opcodes, words or single bytes."""

from __future__ import annotations

import random

Units = list[bytes]

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)
# A pattern is repeated until it is about so long.
LONGEST_RUN = 50_000


def mutated(units: Units, chance: random.Random) -> Units:
    """One to four changes."""
    found = list(units)
    for _ in range(chance.randint(1, 4)):
        found = chance.choice(MUTATORS)(found, chance)
    return found


def repeated(units: Units, size: int, chance: random.Random) -> list[Units]:
    """A random slice that stands in its place so often that the whole has about a size, and twice, four and eight times
    that.
    """
    start = chance.randrange(len(units))
    part = units[start : start + chance.choice((1, 1, 1, 2, 3, 8))]
    if chance.random() < 0.3:
        # A part of a unit, which then breaks it.
        whole = b"".join(part)
        at = chance.randrange(max(1, len(whole)))
        part = [whole[at : at + chance.choice((1, 2, 3, 4, 7, 16))] or b"\0"]
    elif chance.random() < 0.3:
        part = mutated(part, chance) or [b"\0"]
    length = max(1, sum(map(len, part)))
    return [units[:start] + part * max(1, size * factor // length) + units[start:] for factor in (1, 2, 4, 8)]


def flip(units: Units, chance: random.Random) -> Units:
    """Wrong bits in one unit."""
    return _in_one(units, chance, lambda data: _flipped(data, chance))


def _flipped(data: bytes, chance: random.Random) -> bytes:
    wrong = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if wrong:
            wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
    return bytes(wrong)


def lie(units: Units, chance: random.Random) -> Units:
    """A number that is another one: a length, a count or an offset."""

    def change(data: bytes) -> bytes:
        width = chance.choice((1, 2, 4, 8))
        at = chance.randrange(max(1, len(data) - width + 1))
        number = chance.choice(INTERESTING) % 256**width
        return data[:at] + number.to_bytes(width, chance.choice(("little", "big"))) + data[at + width :]

    return _in_one(units, chance, change)


def cut(units: Units, chance: random.Random) -> Units:
    return units[: chance.randrange(len(units) + 1)]


def leave_out(units: Units, chance: random.Random) -> Units:
    at = chance.randrange(len(units) + 1)
    return units[:at] + units[at + chance.randint(1, 3) :]


def duplicate(units: Units, chance: random.Random) -> Units:
    at = chance.randrange(len(units) + 1)
    part = units[at : at + chance.randint(1, 4)]
    return units[:at] + part * chance.choice((2, 3, 50, 500)) + units[at:]


def splice(units: Units, chance: random.Random) -> Units:
    """A slice that stands elsewhere as well."""
    start, at = chance.randrange(len(units) + 1), chance.randrange(len(units) + 1)
    return units[:at] + units[start : start + chance.randint(1, 8)] + units[at:]


def fill(units: Units, chance: random.Random) -> Units:
    """One byte or a short pattern, many times over."""
    pattern = bytes(chance.choice((0, 0xFF, chance.randrange(256))) for _ in range(chance.choice((1, 1, 2, 3, 5))))
    run = pattern * (chance.choice((16, 1000, LONGEST_RUN)) // len(pattern))
    at = chance.randrange(len(units) + 1)
    return [*units[:at], run, *units[at:]]


MUTATORS = (flip, flip, lie, lie, cut, leave_out, duplicate, splice, fill)


def _in_one(units: Units, chance: random.Random, change: object) -> Units:
    if not units:
        return units
    at = chance.randrange(len(units))
    return [*units[:at], change(units[at]), *units[at + 1 :]]  # type: ignore[operator]
