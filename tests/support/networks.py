"""The kinds of networks that methods compute differently."""

from __future__ import annotations

from typing import Any

import pytest

NETWORKS: dict[str, dict[str, Any]] = {
    "CLS": {},
    "five prefix tokens": {"register_tokens": 4},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "mean of all": {"pooling": "mean of all"},
    "CLS and mean": {"pooling": "cls and mean"},
    "CLS and mean, norm after pooling": {"pooling": "cls and mean", "final_norm": "after pooling"},
    "attention pooling": {"cls_token": False, "pooling": "attention"},
    "one head": {"heads": 1},
    "one layer": {"depth": 1},
    "rotary, QK-norm, gated MLP": {"rotary": True, "query_key_norm": True, "gated_mlp": True},
    "oblong patch": {"patch_height": 8, "patch_width": 4},
    "portrait image, oblong patch": {"image_height": 24, "image_width": 8, "patch_height": 4, "patch_width": 2},
}
"""Arguments of the fixture ``make_network``, by kind of network."""


def every_network(*names: str) -> pytest.MarkDecorator:
    """Run a test with the ``changes`` of each of these networks."""
    return pytest.mark.parametrize("changes", [NETWORKS[name] for name in names], ids=names)
