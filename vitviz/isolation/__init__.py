"""Open strangers' files in separate processes, with limits on memory, processor time and wall time.

This package has the processes, their limits and their jobs. The formats of files belong to ``images`` and ``weights``,
and access rights to ``ui``.
"""

from vitviz.isolation.clips import IsolatedClip, open_video, unopened_frame
from vitviz.isolation.limits import Limits
from vitviz.isolation.opening import (
    BACKGROUND_NICENESS,
    IsolatedTower,
    OpenPicture,
    open_checkpoint,
    open_picture,
    open_published,
    open_snapshot,
    unopened_picture,
)
from vitviz.isolation.worker import Worker, require_forks, shared_worker

__all__ = [
    "BACKGROUND_NICENESS",
    "IsolatedClip",
    "IsolatedTower",
    "Limits",
    "OpenPicture",
    "Worker",
    "open_checkpoint",
    "open_picture",
    "open_published",
    "open_snapshot",
    "open_video",
    "require_forks",
    "shared_worker",
    "unopened_frame",
    "unopened_picture",
]
