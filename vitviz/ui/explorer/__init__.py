"""The page in the browser, which computes and draws as much as it can without the server."""

from __future__ import annotations

from vitviz.ui.explorer.page import whole_page
from vitviz.ui.packs import file_names, map_pack, pack

__all__ = ["file_names", "map_pack", "pack", "whole_page"]
