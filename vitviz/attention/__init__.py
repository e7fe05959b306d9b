"""Attention as numbers: the order of the tokens, one map over the patches, and the trace of a forward pass.

A trace keeps queries and keys and recomputes any row or matrix exactly. ``models`` builds the networks, ``attribution``
gives the maps their meaning.
"""

from vitviz.attention.layout import TokenLayout
from vitviz.attention.token_map import TokenMap
from vitviz.attention.trace import AttentionTrace

__all__ = ["AttentionTrace", "TokenLayout", "TokenMap"]
