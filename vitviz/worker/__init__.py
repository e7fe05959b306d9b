"""Open a stranger's file in a child: a forked process with limits, which lives for one file.

A reader is a generator function that runs in the child. It yields facts as JSON and bytes, and gets what it asks for
from the app. Readers stand with what they read: ``isolated_pictures`` in ``vitviz.images``, ``isolated_clips`` in
``vitviz.video``.
"""

from vitviz.worker.child import Limits, hide_memory
from vitviz.worker.parent import Child, Worker, check_limits, require_forks, shared_worker

__all__ = [
    "Child",
    "Limits",
    "Worker",
    "check_limits",
    "hide_memory",
    "require_forks",
    "shared_worker",
]
