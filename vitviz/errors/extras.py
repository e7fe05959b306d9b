"""Imports of packages that not everybody needs, and how to install one that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import quote

# What pip installs for each module, as the extras of pyproject.toml have it, to which a test holds it.
REQUIREMENTS = {
    "anywidget": "anywidget>=0.9",
    "av": "av>=17",
    "captum": "captum>=0.9",
    "datasets": "datasets>=4",
    "duckdb": "duckdb>=1.1",
    "gradio": "gradio>=6.31,<7 pydantic>=2.11 starlette>=1.0.1 torch>=2.10",
    "mcp": "gradio[mcp]>=6.31,<7",
    "open_clip": "open_clip_torch>=3.3",
    "pillow_heif": "pillow-heif>=1.8",
    "pyarrow": "pyarrow>=17",
    "ray": "ray[data]>=2.60",
    "tensorboard": "tensorboard>=2.21",
    "timm": "timm>=1.0.31",
    "transformers": "transformers>=5.17",
}


def needs(feature: str, module: str) -> str:
    """The message that a feature needs a module, with the line that installs it from any package index.

    >>> needs("a HEIC photo", "pillow_heif")
    "a HEIC photo needs pillow_heif: pip install 'pillow-heif>=1.8'"
    """
    packages = " ".join(f"'{each}'" for each in REQUIREMENTS.get(module, module).split())
    return f"{feature} needs {module}: pip install {packages}"


@contextmanager
def optional(feature: str = "this") -> Iterator[None]:
    """Context for imports of packages that an extra installs; if one is missing, the error says how to install it.

    Args:
        feature: what needs the packages, the subject of the message.

    Raises:
        ConfigError: a package is missing, or one that is installed does not load.
    """
    try:
        yield
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name:
            raise ConfigError(needs(feature, error.name.partition(".")[0])) from None
        # transformers names no module, and has the reason as the cause.
        cause = error.__cause__ or error
        reason = f"{type(cause).__name__}: {quote(str(cause))}"
        remedy = "; expected the torchvision that fits your torch" if "torchvision" in reason else ""
        raise ConfigError(f"{feature}: a package that is installed does not load: {reason}{remedy}") from None
