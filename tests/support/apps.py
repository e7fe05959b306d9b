"""Apps in the process of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Before vitviz has imported it, its import takes twice as long: it writes stubs.
    import gradio as gr


def close(demo: gr.Blocks) -> None:
    """Close an app for good: what it deletes at its end may be the files of the next one, which has the same names."""
    thread = demo.server.thread
    demo.close(verbose=False)
    thread.join(60)
    assert not thread.is_alive()
