"""Kinds of models that an analysis handles differently."""

from __future__ import annotations

from typing import Any

MODELS: dict[str, dict[str, Any]] = {
    "CLS": {},
    "five prefix tokens": {"distillation_token": True, "register_tokens": 3},
    "no CLS": {"cls_token": False, "pooling": "mean"},
    "no CLS, registers": {"cls_token": False, "pooling": "mean", "register_tokens": 2},
    "one head": {"heads": 1, "head_width": 32},
    "one layer": {"depth": 1},
    "no classifier": {"classes": 0},
}
