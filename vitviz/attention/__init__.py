"""Attention as numbers: the order of the tokens, one map over the patches, and the trace of a forward pass.

A trace keeps queries and keys and computes any row or matrix again, exactly. How a network is built is in ``models``,
what a map means in ``attribution``.
"""

from vitviz.attention.layout import TokenLayout
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace

__all__ = ["AttentionTrace", "TokenLayout", "TokenMap"]
