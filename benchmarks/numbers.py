"""Numbers as text."""

from __future__ import annotations


def significant(value: float, digits: int = 3) -> str:
    """A number with this many significant digits; only below a thousandth in scientific notation."""
    if value and abs(value) < 1e-3:
        return f"{value:.{digits - 1}e}"
    integer_digits = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    rounded = f"{value:,.{max(0, digits - integer_digits)}f}"
    # Leading zeros after the decimal point are not significant.
    return f"{value:.{digits}g}" if 0 < abs(value) < 0.1 else rounded


def seconds(value: float) -> str:
    """A time in seconds, milliseconds or microseconds."""
    unit, factor = ("s", 1.0) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("µs", 1e6)
    return f"{significant(value * factor)} {unit}"


def mebibytes(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB"
