"""The tests that docs/hosting.md names for its promises exist."""

from __future__ import annotations

import re

from tests.support.example import ROOT

PAGE = (ROOT / "docs" / "hosting.md").read_text()
PROMISES = PAGE.partition("## What the server promises\n")[2]


def test_every_promise_names_tests_that_are_there() -> None:
    promises = [line for line in PROMISES.splitlines() if line.startswith("- **")]
    assert len(promises) >= 30
    for promise in promises:
        found = re.findall(r"`([\w/]+\.py)?::(test_\w+)`", promise)
        assert found, promise
    file = ""
    for name, test in re.findall(r"`([\w/]+\.py)?::(test_\w+)`", PROMISES):
        file = name or file
        text = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), (file, test)
