"""Apps in the process of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Imported before vitviz, Gradio writes stubs and takes twice as long.
    import gradio as gr


def close(demo: gr.Blocks) -> None:
    """Close an app and wait for its thread, whose cleanup may otherwise delete files of the next app."""
    thread = demo.server.thread
    demo.close(verbose=False)
    thread.join(60)
    assert not thread.is_alive()
