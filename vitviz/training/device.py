"""Capabilities of a device."""

from __future__ import annotations

from typing import Any

import torch


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
