"""HTML templates with placeholders such as ``@title@``."""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """The template with every placeholder replaced by its value.

    A single pass replaces all, since a value may look like a placeholder. Values are not escaped; the caller does that.
    """
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)
