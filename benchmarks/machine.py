"""On what was measured."""

from __future__ import annotations

import os
import platform
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "timm", "transformers", "vit-pytorch", "matplotlib")


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
    about = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", about.read_text(), re.MULTILINE) if about.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
