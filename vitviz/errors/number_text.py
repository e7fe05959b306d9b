"""Numbers as text in tables and sentences; the page formats them in the same way."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal

# Numbers outside of this range have an exponent.
MIN_PLAIN, MAX_PLAIN = 1e-4, 1e5
# Smaller percentages have one significant digit in place of one decimal.
MIN_DECIMAL_PERCENT = 0.1


def digits(value: float) -> str:
    """A number to three significant digits, without trailing zeros; NaN as a dash."""
    if not math.isfinite(value):
        return "–" if math.isnan(value) else str(value)
    rounded = _rounded(value, 3)
    if value == 0 or MIN_PLAIN <= abs(value) < MAX_PLAIN:
        return f"{rounded.normalize() + 0:f}"
    return _with_exponent(rounded, 2)


def percent(value: float) -> str:
    """A fraction as a percentage with one decimal; a small one with one significant digit."""
    if math.isnan(value):
        return "–"
    percentage = 100 * value
    if percentage == 0:
        return "0%"
    if percentage >= MIN_DECIMAL_PERCENT:
        return f"{Decimal(percentage).quantize(Decimal('0.1'), ROUND_HALF_UP)}%"
    rounded = _rounded(percentage, 1)
    # Below this, JavaScript writes an exponent.
    return f"{rounded:f}%" if abs(rounded) >= Decimal("1e-6") else f"{_with_exponent(rounded, 0)}%"


def _rounded(value: float, count: int) -> Decimal:
    """The value to ``count`` significant digits; a half is rounded up, as in JavaScript."""
    return Context(prec=count, rounding=ROUND_HALF_UP).create_decimal(value)


def _with_exponent(value: Decimal, decimals: int) -> str:
    head, _, exponent = f"{value:.{decimals}e}".partition("e")
    return f"{head}e{int(exponent):+d}"
