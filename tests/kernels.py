"""The kernels of the page as WebAssembly: ``python -m tests.kernels`` holds the committed files to their source.

It compiles ``vitviz/ui/page/device/kernels.c`` and compares byte for byte, so it needs the compiler of the extra
``kernels``, which is held to one version. ``--write`` writes the files instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "vitviz" / "ui" / "page" / "device"
FEATURES = {
    "kernels.wasm": "generic+simd128+bulk_memory",
    "kernels-relaxed.wasm": "generic+simd128+bulk_memory+relaxed_simd",
}
"""The instructions that each file may use."""
FLAGS = (
    *("--target=wasm32-freestanding", "-O3", "-nostdlib", "-Wall", "-Wextra", "-Werror"),
    *("-fno-math-errno", "-fno-strict-aliasing", "-fno-builtin"),
    *("-Wl,--no-entry", "-Wl,--export=__heap_base", "-Wl,-s"),
)
"""Not ``-ffast-math``: it could merge the two parts of the logarithm in ``exponential``."""


def compiled(name: str) -> bytes:
    """A file as the compiler makes it.

    Raises:
        subprocess.CalledProcessError: the source is wrong.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / name
        flags = [*FLAGS, f"-mcpu={FEATURES[name]}"]
        command = [sys.executable, "-m", "ziglang", "cc", *flags, "kernels.c", "-o", str(out)]
        # By a relative path, so that the folder is not in the file.
        subprocess.run(command, check=True, cwd=FOLDER)
        return out.read_bytes()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files instead of comparing them")
    write = parser.parse_args(arguments).write
    if importlib.util.find_spec("ziglang") is None:
        print("The compiler is not installed: pip install -e '.[kernels]'")
        return 1
    different = [name for name in FEATURES if (FOLDER / name).read_bytes() != compiled(name)] if not write else []
    for name in FEATURES if write else ():
        (FOLDER / name).write_bytes(compiled(name))
    for name in FEATURES:
        verdict = "differs from its source" if name in different else "is that of its source"
        print(f"{name} {verdict}: {(FOLDER / name).stat().st_size:,} bytes")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
