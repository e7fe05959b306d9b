"""Checks the contents of a built wheel and sdist: ``python -m tests.distributions FOLDER``."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What an sdist holds besides the sources of the wheel.
SDIST_EXTRAS = {
    *("LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", ".gitignore"),
    *("docs/site/pypi.md", "pyproject.toml", "PKG-INFO"),
}
# Folders outside the package that a wheel takes in, and the files there that it leaves out.
BUNDLED_FOLDERS = {"assets": {"screenshot.png"}, "checkpoints": set()}


def wheel_files(root: Path = ROOT) -> set[str]:
    """The names of the files that a wheel must hold."""
    names = {
        path.relative_to(root).as_posix()
        for path in (root / "vitviz").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".DS_Store"
    }
    for folder, ignored in BUNDLED_FOLDERS.items():
        names |= {
            f"vitviz/{folder}/{path.name}"
            for path in (root / folder).iterdir()
            if path.is_file() and path.name not in ignored and path.suffix != ".partial"
        }
    return names


def wheel_problems(names: set[str], expected: set[str]) -> list[str]:
    """The files that a wheel lacks, and those that do not belong in it."""
    found = {name for name in names if ".dist-info/" not in name and not name.endswith("/")}
    return [f"lacks {name}" for name in sorted(expected - found)] + [
        f"holds {name}" for name in sorted(found - expected)
    ]


def sdist_problems(names: set[str], expected: set[str]) -> list[str]:
    """The same for an sdist, whose names begin with a folder named after the project."""
    found = {name.partition("/")[2] for name in names}
    found.discard("")
    bundled = tuple(f"vitviz/{folder}/" for folder in BUNDLED_FOLDERS)
    required = {name.removeprefix("vitviz/") if name.startswith(bundled) else name for name in expected} | SDIST_EXTRAS
    return [f"lacks {name}" for name in sorted(required - found)] + [
        f"holds {name}" for name in sorted(found - required)
    ]


def main() -> int:
    """Print the largest files of both. Returns 1 if a file is missing or does not belong."""
    folder, expected, wrong = Path(sys.argv[1]), wheel_files(), 0
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {info.filename: info.file_size for info in archive.infolist()}
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name: member.size for member in archive.getmembers() if member.isfile()}
    for path, sizes, problems in (
        (wheel, in_wheel, wheel_problems(set(in_wheel), expected)),
        (sdist, in_sdist, sdist_problems(set(in_sdist), expected)),
    ):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB, {len(sizes)} files; largest:")
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:5]:
            print(f"  {size / 1e6:6.2f} MB  {name}")
        print("\n".join(f"  {problem}" for problem in problems) or "  no file is missing, and none is too many")
        wrong |= bool(problems)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
