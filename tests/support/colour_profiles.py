"""Colour profiles of a power curve, or of the curve of sRGB, and any primaries."""

from __future__ import annotations

import struct

from vitviz.images.colours import D50, GAMMA_TOLERANCE, _to_d50

# Parametric curve of sRGB, IEC 61966-2-1.
SRGB_CURVE = (3, 2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)


def gamma_profile(gamma: float, chromaticities: tuple[float, ...]) -> bytes:
    """A profile for the gamma and chromaticities that a PNG file could state."""
    matrix = _to_d50(chromaticities)
    curve = SRGB_CURVE if abs(gamma * 2.2 - 1) <= GAMMA_TOLERANCE else (0, 1 / gamma)
    tags = {b"wtpt": b"XYZ \0\0\0\0" + _fixed(*D50)}
    tags |= {
        name: b"XYZ \0\0\0\0" + _fixed(*column)
        for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), matrix.T, strict=True)
    }
    tags |= dict.fromkeys(
        (b"rTRC", b"gTRC", b"bTRC"), b"para\0\0\0\0" + struct.pack(">HH", curve[0], 0) + _fixed(*curve[1:])
    )
    table, body = struct.pack(">I", len(tags)), b""
    for name, data in tags.items():
        table += name + struct.pack(">II", 128 + 4 + 12 * len(tags) + len(body), len(data))
        body += data
    size = struct.pack(">I", 128 + len(table) + len(body))
    head = size + bytes(4) + b"\x04\x20\0\0mntrRGB XYZ " + bytes(12) + b"acsp" + bytes(28) + _fixed(*D50)
    return head.ljust(128, b"\0") + table + body


def _fixed(*numbers: float) -> bytes:
    return b"".join(struct.pack(">i", round(number * 65536)) for number in numbers)
