"""How far to trust maps: comparisons of methods, shuffled weights, probes, and tables over many images and heads."""

from vitviz.evaluation import probes
from vitviz.evaluation.comparison import Comparison, compare
from vitviz.evaluation.head_table import measure_heads, measure_heads_over
from vitviz.evaluation.objects import attention_on_objects
from vitviz.evaluation.randomization import cascade, randomized_model

__all__ = [
    "Comparison",
    "attention_on_objects",
    "cascade",
    "compare",
    "measure_heads",
    "measure_heads_over",
    "probes",
    "randomized_model",
]
