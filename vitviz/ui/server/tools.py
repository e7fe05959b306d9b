"""Pictures in calls by MCP, kept as uploads before Gradio sees the call.

The package of MCP takes 4 MiB, and Gradio would keep the pictures in a folder that nobody empties.
"""

from __future__ import annotations

import base64
import itertools
import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from vitviz.system.strangers import FORM_FILES
from vitviz.ui.server.routes import FILE
from vitviz.ui.server.rule import RequestError
from vitviz.ui.server.visitor_files import Folder


def with_uploads(value: Any, folder: Folder) -> Any:
    """The JSON of a request by MCP, with the addresses of uploads in the place of ``data:`` URLs (RFC 2397).

    Raises:
        RequestError: it has too many.
        LimitError: there is no room for them.
    """
    count = itertools.count(1)

    def address(field: Any) -> Any:
        if not isinstance(field, str) or not field.startswith("data:"):
            return field
        if next(count) > FORM_FILES:
            raise RequestError(413, f"the call has more than {FORM_FILES} pictures")
        head, _, text = field.partition(",")
        content = b""
        with suppress(ValueError):
            content = base64.b64decode(text) if head.endswith(";base64") else unquote_to_bytes(text)
        # Nothing is sent to the host.
        return f"http://localhost{FILE}{quote(str(folder.keep(content, 'picture')))}"

    return json.loads(json.dumps(value), object_hook=lambda each: {name: address(each[name]) for name in each})
