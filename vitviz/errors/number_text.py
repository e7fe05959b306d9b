"""How numbers stand in tables and sentences: the same everywhere, and as the page writes them."""

from __future__ import annotations

import math

# Beyond these, a number has an exponent.
LEAST_PLAIN, MOST_PLAIN = 1e-4, 1e5


def digits(value: float) -> str:
    """A number to three significant digits, without zeros at its end; NaN as a dash."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if LEAST_PLAIN <= abs(value) < MOST_PLAIN:
        rounded = float(f"{value:.2e}")
        return f"{rounded:.7f}".rstrip("0").rstrip(".")
    head, _, exponent = f"{value:.2e}".partition("e")
    return f"{head}e{int(exponent):+d}"


def percent(value: float) -> str:
    """A probability or another share of a whole; a small one with one digit that says something."""
    if math.isnan(value):
        return "–"
    part = 100 * value
    if part == 0 or part >= 0.1:
        return "0%" if part == 0 else f"{part:.1f}%"
    head, _, exponent = f"{part:.0e}".partition("e")
    # As JavaScript writes it: without an exponent down to 1e-6.
    return f"{float(f'{part:.0e}'):.{-int(exponent)}f}%" if part >= 9.5e-7 else f"{head}e{int(exponent):+d}%"
