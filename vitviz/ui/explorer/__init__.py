"""The attention of every token, layer and head under the mouse, drawn in the page without asking the server."""

from __future__ import annotations

from vitviz.ui.explorer.component import AttentionExplorer, Explored, ExplorerData
from vitviz.ui.explorer.page import whole_page
from vitviz.ui.explorer.wire import file_names, map_pack, pack

__all__ = ["AttentionExplorer", "Explored", "ExplorerData", "file_names", "map_pack", "pack", "whole_page"]
