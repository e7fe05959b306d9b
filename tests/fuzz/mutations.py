"""Changes to a file that is a list of units: segments, chunks, opcodes, words or single bytes."""

from __future__ import annotations

import random

Units = list[bytes]

INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1)
# A pattern is repeated until it is about so long.
LONGEST_RUN = 50_000


def mutate(units: Units, chance: random.Random) -> Units:
    """The units after one to four random changes."""
    changed = list(units)
    for _ in range(chance.randint(1, 4)):
        changed = chance.choice(MUTATORS)(changed, chance)
    return changed


def repeat_slice(units: Units, size: int, chance: random.Random) -> list[Units]:
    """Files in which a random slice is repeated, of about a size and twice, four and eight times that."""
    start = chance.randrange(len(units))
    pattern = units[start : start + chance.choice((1, 1, 1, 2, 3, 8))]
    if chance.random() < 0.3:
        # A slice of bytes, which breaks its unit.
        content = b"".join(pattern)
        at = chance.randrange(max(1, len(content)))
        pattern = [content[at : at + chance.choice((1, 2, 3, 4, 7, 16))] or b"\0"]
    elif chance.random() < 0.3:
        pattern = mutate(pattern, chance) or [b"\0"]
    length = max(1, sum(map(len, pattern)))
    return [units[:start] + pattern * max(1, size * factor // length) + units[start:] for factor in (1, 2, 4, 8)]


def flip(units: Units, chance: random.Random) -> Units:
    """Flip bits in one unit."""
    return _change_one(units, chance, lambda data: _flip_bits(data, chance))


def _flip_bits(data: bytes, chance: random.Random) -> bytes:
    wrong = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        if wrong:
            wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
    return bytes(wrong)


def lie(units: Units, chance: random.Random) -> Units:
    """Change a number, such as a length, a count or an offset."""

    def change(data: bytes) -> bytes:
        width = chance.choice((1, 2, 4, 8))
        at = chance.randrange(max(1, len(data) - width + 1))
        number = chance.choice(INTERESTING) % 256**width
        return data[:at] + number.to_bytes(width, chance.choice(("little", "big"))) + data[at + width :]

    return _change_one(units, chance, change)


def truncate(units: Units, chance: random.Random) -> Units:
    return units[: chance.randrange(len(units) + 1)]


def leave_out(units: Units, chance: random.Random) -> Units:
    at = chance.randrange(len(units) + 1)
    return units[:at] + units[at + chance.randint(1, 3) :]


def duplicate(units: Units, chance: random.Random) -> Units:
    at = chance.randrange(len(units) + 1)
    copied = units[at : at + chance.randint(1, 4)]
    return units[:at] + copied * chance.choice((2, 3, 50, 500)) + units[at:]


def splice(units: Units, chance: random.Random) -> Units:
    """Copy a slice to another place."""
    start, at = chance.randrange(len(units) + 1), chance.randrange(len(units) + 1)
    return units[:at] + units[start : start + chance.randint(1, 8)] + units[at:]


def fill(units: Units, chance: random.Random) -> Units:
    """Insert a byte or a short pattern many times."""
    pattern = bytes(chance.choice((0, 0xFF, chance.randrange(256))) for _ in range(chance.choice((1, 1, 2, 3, 5))))
    run = pattern * (chance.choice((16, 1000, LONGEST_RUN)) // len(pattern))
    at = chance.randrange(len(units) + 1)
    return [*units[:at], run, *units[at:]]


MUTATORS = (flip, flip, lie, lie, truncate, leave_out, duplicate, splice, fill)


def _change_one(units: Units, chance: random.Random, change: object) -> Units:
    if not units:
        return units
    at = chance.randrange(len(units))
    return [*units[:at], change(units[at]), *units[at + 1 :]]  # type: ignore[operator]
