"""What vitviz brings along: a checkpoint and pictures."""

from pathlib import Path

BUNDLED = ("vitviz-photos",)


def resources(kind: str) -> Path:
    """The folder of the bundled ``"checkpoints"`` or ``"assets"``: in an installed package, or in the repository."""
    package = Path(__file__).parents[1]
    return package / kind if (package / kind).is_dir() else package.parent / kind
