"""Opening what strangers sent in a process of its own, with limits on memory, processor time and wall time.

What belongs here: the processes, their limits, and the jobs that they do. What a file means stays in ``images`` and
``weights``; who may ask for what, in ``ui``.
"""

from vitviz.isolation.clips import IsolatedClip, clip, unopened_frame
from vitviz.isolation.limits import Limits
from vitviz.isolation.opening import (
    GIVING_WAY,
    IsolatedTower,
    OpenPicture,
    checkpoint,
    picture,
    published,
    snapshot,
    unopened_picture,
)
from vitviz.isolation.worker import Worker, shared_worker

__all__ = [
    "GIVING_WAY",
    "IsolatedClip",
    "IsolatedTower",
    "Limits",
    "OpenPicture",
    "Worker",
    "checkpoint",
    "clip",
    "picture",
    "published",
    "shared_worker",
    "snapshot",
    "unopened_frame",
    "unopened_picture",
]
