"""Small changes of the code: which are made, and that tests notice them by failing or by hanging."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import mutate
from tests.support.waiting import HANG_SECONDS

# A statement, and what it becomes by its first or only change.
CHANGED = [
    ("x = a < b", "x = a <= b"),
    ("x = a <= b < c", "x = a < b < c"),
    ("x = a not in b", "x = a in b"),
    ("x = a is None", "x = a is not None"),
    ("x = a or b", "x = a and b"),
    ("x = a // b", "x = a / b"),
    ("x = a ** b", "x = a * b"),
    ("x += y", "x -= y"),
    ("x = not a", "x = a"),
    ("x = 0.5", "x = 1.5"),
    ("x = y[-1]", "x = y[0]"),
    ("x = f(exact=True)", "x = f(exact=False)"),
    ("if a:\n    pass", "if not a:\n    pass"),
    ("x = a if é else c", "x = a if not é else c"),
    ("def f():\n    return a", "def f():\n    return None"),
    ("def f(*, a='b'):\n    pass", "def f(*, a=None):\n    pass"),
    ("f(\n    x\n)", "pass"),
    ("x = values.argmax(k)", "x = values.argmin(k)"),
    ("x = min(a, b)", "x = max(a, b)"),
    ("for a in b:\n    break", "for a in b:\n    continue"),
]
LEFT_ALONE = [
    '"""A text of 3 words."""',
    "x: Literal[1] | None",
    "def f(a: int | str = None) -> A | B: ...",
    "Size = int | tuple[int, int]",
    "if TYPE_CHECKING:\n    x = 1",
    "class A:\n    def __repr__(self):\n        return 1",
    "raise ValueError('at most', LIMIT + 1)",
    "x = f'{a + 1} {b if c else d}'",
    "x = a + 'text' + b",
    "x = zip(a, b, strict=True)",
    "x = isinstance(a, int | float)",
    "@cache(size=1)\nclass A: ...",
]


@pytest.mark.parametrize(("statement", "changed"), CHANGED)
def test_a_change_is_of_one_place(statement: str, changed: str) -> None:
    assert mutate.changed(statement, 0)[0] == changed


@pytest.mark.parametrize("statement", LEFT_ALONE)
def test_what_no_test_need_notice_is_left_alone(statement: str) -> None:
    assert mutate.count(statement) == 0


MODULE = """
def total(values):
    spare = 5
    found = 0
    for value in values:
        found += value
    while True:
        if found > 0:
            break
    return found
"""
TESTS = "from module import total\n\ndef test_total(): assert total([1, 2]) == 3\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("change", "seconds", "found"),
    [
        ("5 -> 6", HANG_SECONDS, ""),
        ("return found -> return None", HANG_SECONDS, "1 failed"),
        # short: either way its time is over.
        ("break -> continue", 4, "hangs for 4 s"),
    ],
)
def test_tests_notice_a_change_by_failing_or_by_hanging(
    tmp_path: Path, change: str, seconds: float, found: str
) -> None:
    every = dict(reversed(mutate.changed(MODULE, number)) for number in range(mutate.count(MODULE)))
    [code] = [code for description, code in every.items() if description.endswith(change)]
    (tmp_path / "module.py").write_text(code)
    (tmp_path / "test_total.py").write_text(TESTS)
    assert mutate.run(tmp_path, ["test_total.py"], seconds).startswith(found)
