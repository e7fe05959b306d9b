"""Pages of HTML with places to fill in, such as ``@title@``."""

from __future__ import annotations

import re
from collections.abc import Mapping


def filled(template: str, parts: Mapping[str, str]) -> str:
    """A template with every part in its place.

    All are put in at once, since a part may itself look like a place. They are put in as they are: who passes a text
    has escaped it.
    """
    return re.sub(r"@(\w+)@", lambda place: parts[place[1]], template)
