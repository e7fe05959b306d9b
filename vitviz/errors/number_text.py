"""How numbers stand in tables and sentences: the same everywhere, and as the page writes them."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal

# Outside of these, a number has an exponent.
LEAST_PLAIN, MOST_PLAIN = 1e-4, 1e5
# Smaller shares have one digit in place of one decimal.
LEAST_PERCENT = 0.1


def digits(value: float) -> str:
    """A number to three significant digits, without zeros at its end; NaN as a dash."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    rounded = _rounded(value, 3)
    if value == 0 or LEAST_PLAIN <= abs(value) < MOST_PLAIN:
        return f"{rounded.normalize() + 0:f}"
    return _with_exponent(rounded, 2)


def percent(value: float) -> str:
    """A probability or another share of a whole; a small one with one digit that says something."""
    if math.isnan(value):
        return "–"
    part = 100 * value
    if part == 0:
        return "0%"
    if part >= LEAST_PERCENT:
        return f"{Decimal(part).quantize(Decimal('0.1'), ROUND_HALF_UP)}%"
    rounded = _rounded(part, 1)
    # JavaScript writes an exponent from here on.
    return f"{rounded:f}%" if abs(rounded) >= Decimal("1e-6") else f"{_with_exponent(rounded, 0)}%"


def _rounded(value: float, count: int) -> Decimal:
    """To so many significant digits; a half goes up, as in JavaScript."""
    return Context(prec=count, rounding=ROUND_HALF_UP).create_decimal(value)


def _with_exponent(value: Decimal, decimals: int) -> str:
    head, _, exponent = f"{value:.{decimals}e}".partition("e")
    return f"{head}e{int(exponent):+d}"
