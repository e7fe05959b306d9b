"""Modules of other packages, and of the user's own, as networks: their attention is captured while they run.

``interception`` sees the calls, ``structure`` and ``order`` say what they are, ``verification`` holds them to what the
module computed, ``recording`` makes traces of them.
"""

from vitviz.models.capture.facts import ModuleConfig, ModuleFacts
from vitviz.models.capture.network import CapturedNetwork

__all__ = ["CapturedNetwork", "ModuleConfig", "ModuleFacts"]
