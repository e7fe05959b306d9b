"""The machine of a measurement."""

from __future__ import annotations

import os
import platform
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "timm", "transformers")


def machine(threads: int, quick: bool) -> dict[str, str | int | bool]:
    """Processor, threads, versions and date."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 1,
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "date": date.today().isoformat(),
        "quick": quick,
    }


def _processor() -> str:
    cpu_info = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*: (.+)$", cpu_info.read_text(), re.MULTILINE) if cpu_info.exists() else None
    return match[1] if match else platform.processor() or platform.machine()
