"""Measures of one image: how faithful a map is, and what a head or a patch does to a score.

What compares many maps or images is in ``evaluation``.
"""

from vitviz.metrics.ablation import HeadEffects
from vitviz.metrics.faithfulness import faithfulness

__all__ = ["HeadEffects", "faithfulness"]
