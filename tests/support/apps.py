"""Apps in the process of the tests."""

from __future__ import annotations

from vitviz.ui.app import App


def close(app: App) -> None:
    """Close an app and wait for its thread, whose cleanup may otherwise delete files of the next app."""
    blocks = app.get_blocks()
    thread = blocks.server.thread
    blocks.close(verbose=False)
    thread.join(60)
    assert not thread.is_alive()
