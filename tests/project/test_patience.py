"""No test depends on how fast the machine is: whatever it waits for has a limit that only a hang reaches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.example import ROOT

LEAST_SECONDS = 5
# Calls whose number is a time to wait, by its position.
POSITIONS = {"sleep": 0, "wait": 0, "join": 0, "settimeout": 0, "wait_for": 1, "create_connection": 1, "select": 3}
POSITIONS |= {"wait_for_timeout": 0}
# Names of times to wait: arguments, constants, settings of the product.
TIME = re.compile(r"(?i)(^|_)time_?out(_|$)|^(cpu_|total_cpu_|wall_|keep_)seconds$")
CONSTANT = re.compile(r"^_?[A-Z_]*(SECONDS|TIMEOUT|INTERVAL)$")
# The units of Playwright are milliseconds.
IN_MILLISECONDS = re.compile(r"^(not_)?to_|^(wait_for_\w+|click|fill|hover|goto|set_options)$")
CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time", "time")
# The beginning of the reason for a short time, in a comment on the line or the one before.
REASON = re.compile(r"#.*\bshort:")


def short_times(text: str) -> Iterator[int]:
    """The lines with a time to wait below the least, other than none at all, and without a reason."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        for number, unit in times(node):
            value = ast.literal_eval(number) if isinstance(number, ast.Constant) else None
            is_short = type(value) in (int, float) and 0 < value < LEAST_SECONDS * unit
            if is_short and not REASON.search("\n".join(lines[max(0, number.lineno - 2) : number.lineno])):
                yield number.lineno


def times(node: ast.AST) -> Iterator[tuple[ast.expr, int]]:
    """What is waited for in a node, and how many of its units are a second."""
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        unit = 1000 if IN_MILLISECONDS.search(name) else 1
        position = POSITIONS.get(name, len(node.args))
        yield from ((each, unit) for each in node.args[position : position + 1])
        yield from ((each.value, unit) for each in node.keywords if each.arg and TIME.search(each.arg))
        # monkeypatch.setattr(module, "SOME_SECONDS", 0.1)
        if name == "setattr" and any(CONSTANT.search(str(getattr(each, "value", ""))) for each in node.args):
            yield node.args[-1], 1
    elif isinstance(node, ast.Assign) and any(CONSTANT.search(getattr(each, "id", "")) for each in node.targets):
        yield node.value, 1
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from ((value, 1) for key, value in pairs if TIME.search(str(getattr(key, "value", ""))))
    elif isinstance(node, ast.Compare) and any(isinstance(each, ast.Lt | ast.LtE) for each in node.ops):
        names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        yield from ((each, 1) for each in node.comparators if names & {*CLOCKS})


def test_no_test_waits_for_a_short_time() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for line in short_times(path.read_text(encoding="utf-8"))
    ]
    advice = "wait_until, LoopClock or HANG_SECONDS of tests/support/waiting.py, or the reason as '# short: …'"
    assert not found, f"{', '.join(found)}: a slow machine takes longer; expected {advice}"
    texts = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    # Playwright's own limit is half a minute.
    makers = [name for name, text in texts.items() if re.search(r"browser\.new_(context|page)\(", text)]
    assert makers == ["driver.py"], "expected new_context of tests/driver.py"
    scripts = [path for path in (ROOT / "tests" / "page").glob("*.js") if "mock.timers" not in path.read_text()]
    assert [path.name for path in scripts if re.search(r"set(Timeout|Interval)\(", path.read_text())] == []


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(0.1)",
        "event.wait(4)",
        "asyncio.wait_for(work, 1)",
        "thread.join(timeout=0.3)",
        "socket.create_connection(place, 2.5)",
        "expect(part).to_be_visible(timeout=4000)",
        "page.wait_for_timeout(500)",
        "monkeypatch.setattr(module, 'KEEP_SECONDS', 0.5)",
        "WAIT_SECONDS = 1.0",
        "Limits(wall_seconds=2)",
        "limits = {'cpu_seconds': 1}",
        "assert time.process_time() - start < 2",
    ],
)
def test_a_short_time_needs_a_reason(line: str) -> None:
    assert list(short_times(line)) == [1]
    assert list(short_times(f"# short: nothing has to happen meanwhile.\n{line}")) == []
