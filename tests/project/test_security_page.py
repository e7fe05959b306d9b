"""The tests that docs/security.md names for its promises exist."""

from __future__ import annotations

import re

from tests.support.example import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()


def test_every_promise_names_tests_that_are_there() -> None:
    promises = [line for line in PAGE.splitlines() if line.startswith("- **")]
    assert len(promises) >= 15
    for promise in promises:
        found = re.findall(r"`([\w/]+\.py)?::(test_\w+)`", promise)
        assert found, promise
    file = ""
    for name, test in re.findall(r"`([\w/]+\.py)?::(test_\w+)`", PAGE):
        file = name or file
        assert f"\ndef {test}(" in (ROOT / "tests" / file).read_text(), (file, test)


def test_every_link_of_the_page_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
