"""Measures for one image: the faithfulness of a map, and the effect of a head or a patch on a score.

``evaluation`` compares many maps or images.
"""

from vitviz.metrics.ablation import HeadEffects
from vitviz.metrics.faithfulness import faithfulness

__all__ = ["HeadEffects", "faithfulness"]
