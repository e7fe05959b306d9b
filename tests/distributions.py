"""What a wheel and an sdist hold: ``python -m tests.distributions FOLDER`` after they were built."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Of the sdist, beside what a wheel is made from.
ABOUT = {
    *("LICENSE", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "MANIFEST.in", "README.md"),
    *("docs/site/pypi.md", "pyproject.toml", "requirements.txt", "setup.cfg", "PKG-INFO"),
}
OUTSIDE = {"assets": {"screenshot.png"}, "checkpoints": set()}


def packaged(root: Path = ROOT) -> set[str]:
    """What a wheel has to hold, by the names in it."""
    found = {
        path.relative_to(root).as_posix()
        for path in (root / "vitviz").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != ".DS_Store"
    }
    for folder, left_out in OUTSIDE.items():
        found |= {
            f"vitviz/{folder}/{path.name}"
            for path in (root / folder).iterdir()
            if path.is_file() and path.name not in left_out and path.suffix != ".partial"
        }
    return found


def wheel_problems(names: set[str], expected: set[str]) -> list[str]:
    """What a wheel lacks, and what it holds for no reason."""
    found = {name for name in names if ".dist-info/" not in name and not name.endswith("/")}
    return [f"lacks {name}" for name in sorted(expected - found)] + [
        f"holds {name}" for name in sorted(found - expected)
    ]


def sdist_problems(names: set[str], expected: set[str]) -> list[str]:
    """The same of an sdist, whose names begin with the project's."""
    found = {name.partition("/")[2] for name in names}
    found = {name for name in found if name and not name.startswith("vitviz.egg-info/")}
    outside = tuple(f"vitviz/{folder}/" for folder in OUTSIDE)
    wanted = {name.removeprefix("vitviz/") if name.startswith(outside) else name for name in expected} | ABOUT
    return [f"lacks {name}" for name in sorted(wanted - found)] + [f"holds {name}" for name in sorted(found - wanted)]


def main() -> int:
    """Print what is in both, by size; 1 if anything is wrong."""
    folder, expected, wrong = Path(sys.argv[1]), packaged(), 0
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
        for name, size in sorted(sizes.items(), key=lambda each: -each[1])[:5]:
            print(f"  {size / 1e6:6.2f} MB  {name}")
        print("\n".join(f"  {problem}" for problem in problems) or "  nothing is missing, and nothing is too much")
        wrong |= bool(problems)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
