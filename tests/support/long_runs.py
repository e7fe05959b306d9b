"""How often `make test-long` repeats what it repeats.

VITVIZ_SEED=7 draws others; VITVIZ_SHARE=0.1 draws a tenth of them.
"""

from __future__ import annotations

import os

SEED = int(os.environ.get("VITVIZ_SEED", "0"))
SHARE = float(os.environ.get("VITVIZ_SHARE", "1"))


def share_of(count: int) -> int:
    """The share of a number of repetitions, at least one."""
    return max(1, round(SHARE * count))
