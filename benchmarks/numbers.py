"""Numbers as a person reads them."""

from __future__ import annotations


def significant(value: float, digits: int = 3) -> str:
    """With so many digits that count, and never as a power of ten where it is above a thousandth."""
    if value and abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    rounded = f"{value:,.{max(0, digits - whole)}f}"
    # Zeros behind the point of a number below one do not count.
    return f"{value:.{digits}g}" if 0 < abs(value) < 0.1 else rounded


def seconds(value: float) -> str:
    """In seconds, milliseconds or microseconds."""
    unit, factor = ("s", 1.0) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("µs", 1e6)
    return f"{significant(value * factor)} {unit}"


def mebibytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"
