"""The command ``vitviz``."""

from vitviz.cli.command import main

__all__ = ["main"]
