"""How much of the code the tests hold: small changes of the code, each of which should make a test fail.

``python -m tests.mutate --count 100 --seed 0 --jobs 2 vitviz/attention`` changes a hundred places of these files and
folders (of all, if none is named), one at a time, each in a copy of the working tree, and runs the tests of its room:
those of ``tests/attention`` for ``vitviz/attention``. ``--tests tests/parity`` asks others. Left alone are annotations,
aliases of types, ``TYPE_CHECKING`` blocks, decorators, ``__repr__``, f-strings, ``strict=``, and what is raised.

A change is noticed if a test fails, if the tests cannot be imported, or if they take `HANG_FACTOR` times as long as
without it and `HANG_SECONDS` more.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "dist", ".*_cache", "artefacts", "*.partial")
HANG_FACTOR, HANG_SECONDS = 4, 30.0
# Changed code may ask for any amount.
MAX_MEMORY_BYTES = 8 * 1024**3
# The exit statuses of pytest when all tests passed, and when there was none.
PASSED = (0, 5)

OPERATORS: dict[type[ast.AST], type[Any]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
    **{ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And},
}
EXTREMES = re.compile(r"(arg|a|nan)?(min|max)(imum)?")
# The argument of a function that is a type or a union of types.
TYPE_ARGUMENTS = {"isinstance": 1, "issubclass": 1, "cast": 0}
TYPE_ALIAS = re.compile(r"_?[A-Z]\w*[a-z]\w*")


class Place(NamedTuple):
    """A module, and which of its changes it is."""

    path: Path
    number: int


# Changes.


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                yield _with(node, ops=[*node.ops[:place], OPERATORS[type(operator)](), *node.ops[place + 1 :]])
        case ast.BoolOp():
            yield _with(node, op=OPERATORS[type(node.op)]())
        case ast.BinOp() | ast.AugAssign() if type(node.op) in OPERATORS and not _is_text(node):
            yield _with(node, op=OPERATORS[type(node.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            yield ast.Constant(-value + 1)
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1 if value + 1 != value else 2 * value)
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.Constant):
            yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Return(value=ast.expr() as returned) if not _is_none(returned):
            yield ast.Return(ast.Constant(None))
        case ast.arguments():
            for name in ("defaults", "kw_defaults"):
                values = getattr(node, name)
                for place, default in enumerate(values):
                    if default is not None and not _is_none(default) and not list(changes(default)):
                        yield _with(node, **{name: [*values[:place], ast.Constant(None), *values[place + 1 :]]})
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if EXTREMES.fullmatch(name):
            other = re.sub("min|max", lambda match: "max" if match[0] == "min" else "min", name, count=1)
            yield _with(node, func=_with(node.func, **{"id" if isinstance(node.func, ast.Name) else "attr": other}))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _with(node: ast.AST, **fields: Any) -> Any:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.AST) -> bool:
    """Whether an expression is a text, or a sum with one."""
    match node:
        case ast.BinOp():
            return _is_text(node.left) or _is_text(node.right)
        case ast.AugAssign():
            return _is_text(node.value)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


class Changer(ast.NodeTransformer):
    """Counts the changes of a module, and makes the one of a number.

    Args:
        number: of the change; None for none.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number, self.count = number, 0
        self.description = ""
        self._depth = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        found = super().generic_visit(node)
        for changed in changes(found):
            if self.count == self.number:
                line = getattr(node, "lineno", 0)
                self.description = f"{line}: {_head(found)} -> {_head(changed)}"
                found = changed
            self.count += 1
        return found

    def leave(self, node: ast.AST) -> ast.AST:
        return node

    # An annotation, texts for people, and what has no other change.
    visit_arg = visit_Raise = visit_JoinedStr = leave

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        if node.name != "__repr__":
            self._depth += 1
            node.args = self.visit(node.args)
            node.body = [self.visit(each) for each in node.body]
            self._depth -= 1
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        is_alias = isinstance(target, ast.Name) and TYPE_ALIAS.fullmatch(target.id) is not None
        return node if is_alias and not self._depth else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node if is_for_types else self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        # The number behind a minus has no change of its own.
        is_number = isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        return self.generic_visit(_with(node, _fields=("op",)) if is_number else node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return node if node.arg == "strict" else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        types = TYPE_ARGUMENTS.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
        kept = None if types is None or types >= len(node.args) else node.args.pop(types)
        found = self.generic_visit(node)
        if kept is not None:
            node.args.insert(types or 0, kept)
        return found


def _head(node: ast.AST) -> str:
    """The first line of a node's code."""
    return ast.unparse(node).partition("\n")[0]


def changed(source: str, number: int) -> tuple[str, str]:
    """The code of a module after a change, and the change in words."""
    changer = Changer(number)
    tree = changer.visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree)), changer.description


def count(source: str) -> int:
    """How many changes a module has."""
    changer = Changer()
    changer.visit(ast.parse(source))
    return changer.count


def draw(paths: Sequence[Path], number: int, seed: int) -> list[Place]:
    """Places of modules at random: of these files, and of those in these folders."""
    modules = sorted({file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path])})
    every = [Place(path, each) for path in modules for each in range(count(path.read_text()))]
    return random.Random(seed).sample(every, min(number, len(every)))


# Runs.


def tests_of(path: Path) -> str:
    """The folder with the tests of a module's room, in the tree."""
    parts = path.relative_to(ROOT).parts[1:-1] or ("project",)
    while not (ROOT / "tests").joinpath(*parts).is_dir():
        parts = parts[:-1]
    return "/".join(("tests", *parts))


def run(tree: Path, tests: Sequence[str], seconds: float | None) -> str:
    """Run tests until one fails; says what failed, and is empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    options: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=tree, env=environment, start_new_session=True, **options) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"hangs for {seconds:.0f} s"
        finally:
            # All that it has started, too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return "" if process.returncode in PASSED else (output.strip().splitlines() or ["no output"])[-1]


def judge(place: Place, trees: SimpleQueue[Path], tests: Sequence[str], usual: dict[str, float]) -> bool:
    """Whether the tests notice a change; prints it."""
    tree, asked = trees.get(), tests or [tests_of(place.path)]
    name = place.path.relative_to(ROOT)
    source = (tree / name).read_text()
    code, description = changed(source, place.number)
    try:
        (tree / name).write_text(code)
        failed = run(tree, asked, HANG_FACTOR * usual[" ".join(asked)] + HANG_SECONDS)
    finally:
        (tree / name).write_text(source)
        trees.put(tree)
    print(f"{'noticed' if failed else 'NOT NOTICED'}: {name}:{description} ({failed or 'passes'})", flush=True)
    return bool(failed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description="Change the code; a test should fail.")
    parser.add_argument("paths", nargs="*", type=Path, help="files and folders with the places; default: vitviz")
    parser.add_argument("--count", type=int, default=100, help="of places")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in a copy of the working tree")
    parser.add_argument("--tests", nargs="+", default=[], help="in place of those of the room")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    paths = [path.resolve() for path in options.paths] or [ROOT / "vitviz"]
    places = draw(paths, options.count, options.seed)
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        trees = SimpleQueue[Path]()
        for number in range(options.jobs):
            trees.put(shutil.copytree(ROOT, Path(folder, str(number)), ignore=LEFT_OUT, symlinks=True))
        usual: dict[str, float] = {}
        tree = trees.get()
        for asked in {" ".join(options.tests) or tests_of(place.path) for place in places}:
            start = time.monotonic()
            if failed := run(tree, asked.split(), None):
                sys.exit(f"{asked}: fails without any change: {failed}")
            usual[asked] = time.monotonic() - start
        trees.put(tree)
        noticed = list(pool.map(partial(judge, trees=trees, tests=options.tests, usual=usual), places))
    print(f"\nnoticed: {sum(noticed)} of {len(noticed)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
