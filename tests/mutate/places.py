"""The places of a module where a small change should make a test fail, and the change of each."""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
# A shorter expression is shown with its line.
MIN_SHOWN_BYTES = 20
Change = tuple[str, Any, Any]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Place:
    """A place and its change.

    Args:
        file: its path from the root of the repository.
        name: the qualified name of the function or class around it; empty at the top of a module.
        kind, ordinal: the kind of change, and which of that kind it is within ``name``.
        line, statement: its line, and the first and last line of its statement (of a compound one, of the head).
        in_function: whether it runs when a function is called, not when the module is imported.
        start, end, text: the bytes of the file that the change replaces, and by what.
        before, after: the expression or line around it, before and after the change.
    """

    file: str
    name: str
    kind: str
    ordinal: int
    line: int
    statement: tuple[int, int]
    in_function: bool
    start: int
    end: int
    text: str
    before: str
    after: str

    @property
    def identity(self) -> str:
        """What stays the same as long as the function around it does."""
        return f"{self.file}::{self.name}::{self.kind}::{self.ordinal}"

    def describe(self) -> str:
        """One line for a list."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.file}:{self.line}: {before} -> {after}"

    def change(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def places(file: str, source: bytes) -> list[Place]:
    """All places of a module."""
    finder = _Finder(file, source)
    finder.visit(ast.parse(source))
    return finder.places


def draw(root: Path, count: int, seed: int, within: Sequence[Path] = ()) -> list[Place]:
    """Places of modules of the package, at random: of these files and folders, or of all."""
    parts = [root / path for path in within] or [root / "vitviz"]
    paths = [path for path in sorted((root / "vitviz").rglob("*.py")) if {path, *path.parents} & {*parts}]
    found = [place for path in paths for place in places(path.relative_to(root).as_posix(), path.read_bytes())]
    return rank(found, seed)[:count]


def rank(found: Iterable[Place], seed: int) -> list[Place]:
    """Places in an order that depends on the seed and on the identity of each alone."""
    return sorted(found, key=lambda place: hashlib.sha256(f"{seed} {place.identity}".encode()).digest())


def function_lines(source: bytes) -> set[int]:
    """The lines of a module that do not run when it is imported."""
    bodies = [node.body for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    return {line for body in bodies for line in range(body[0].lineno, (body[-1].end_lineno or 0) + 1)}


def changes(node: ast.AST) -> Iterator[Change]:
    """The changes of a node: for each its kind, what it replaces, and by what."""
    match node:
        case ast.Compare():
            for number, operator in enumerate(node.ops):
                operators = [*node.ops[:number], OPERATORS[type(operator)](), *node.ops[number + 1 :]]
                yield "compare", node, _with(node, ops=operators)
        case ast.BoolOp():
            yield "boolean", node, _with(node, op=OPERATORS[type(node.op)]())
        case ast.BinOp() | ast.AugAssign() if type(node.op) in OPERATORS and not _is_text(node):
            yield "arithmetic", node, _with(node, op=OPERATORS[type(node.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield "not", node, node.operand
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            yield "number", node, ast.Constant(-value + 1)
        case ast.Constant(value=bool()):
            yield "truth", node, ast.Constant(not node.value)
        case ast.Constant(value=int() | float() as value):
            yield "number", node, ast.Constant(value + 1 if value + 1 != value else 2 * value)
        case ast.If() | ast.While() | ast.IfExp() if not isinstance(node.test, ast.Constant):
            yield "condition", node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.Return(value=ast.expr() as returned) if not _is_none(returned):
            yield "return", returned, ast.Constant(None)
        case ast.arguments():
            for default in [*node.defaults, *filter(None, node.kw_defaults)]:
                if not _is_none(default) and not list(changes(default)):
                    yield "default", default, ast.Constant(None)
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield "call", node, ast.Pass()
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if EXTREMES.fullmatch(name):
            swapped = re.sub("min|max", lambda match: "max" if match[0] == "min" else "min", name, count=1)
            field = "id" if isinstance(node.func, ast.Name) else "attr"
            yield "extreme", node.func, _with(node.func, **{field: swapped})
        case ast.Break():
            yield "jump", node, ast.Continue()
        case ast.Continue():
            yield "jump", node, ast.Break()


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


class _Finder(ast.NodeVisitor):
    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.places: list[Place] = []
        self._line_starts = [0, *(match.end() for match in re.finditer(b"\n", source)), len(source) + 1]
        self._counts: Counter[tuple[str, str]] = Counter()
        self._names: list[str] = []
        self._in_function = False
        self._statement = (0, 0)

    def visit(self, node: ast.AST) -> None:
        outer = self._statement
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            self._statement = node.lineno, max(node.lineno, body[0].lineno - 1 if body else node.end_lineno or 0)
        super().visit(node)
        self._statement = outer

    def generic_visit(self, node: ast.AST) -> None:
        for kind, old, new in changes(node):
            text = ast.unparse(new)
            has_operator = isinstance(new, ast.Compare | ast.BoolOp | ast.BinOp | ast.UnaryOp)
            self._add(kind, old, f"({text})" if has_operator else text)
        super().generic_visit(node)

    def _add(self, kind: str, old: ast.expr | ast.stmt, text: str) -> None:
        name = ".".join(self._names)
        ordinal = self._counts[name, kind]
        self._counts[name, kind] += 1
        starts = self._line_starts
        start = starts[old.lineno - 1] + old.col_offset
        end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
        first, last = start, end
        if end - start < MIN_SHOWN_BYTES:
            first, last = starts[old.lineno - 1], starts[old.end_lineno or 0] - 1
        before = self.source[first:last].decode().strip()
        after = (self.source[first:start] + text.encode() + self.source[end:last]).decode().strip()
        where = (self.file, name, kind, ordinal, old.lineno, self._statement, self._in_function)
        self.places.append(Place(*where, start, end, text, before, after))

    def visit_FunctionDef(self, node: Function) -> None:
        if node.name == "__repr__":
            return
        self._names.append(node.name)
        self.visit(node.args)
        self._visit_body(node.body)
        self._names.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._visit_body([node.body])

    def _visit_body(self, body: Iterable[ast.AST]) -> None:
        outer, self._in_function = self._in_function, True
        for each in body:
            self.visit(each)
        self._in_function = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for each in node.body:
            self.visit(each)
        self._names.pop()

    def visit_arg(self, node: ast.arg) -> None:
        """Its annotation is left alone."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Texts for people, as in the next."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Before Python 3.12 its parts have no positions, either."""

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if self._in_function or not (isinstance(target, ast.Name) and TYPE_ALIAS.fullmatch(target.id)):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            # Its number has no other change.
            node = _with(node, _fields=())
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        types = TYPE_ARGUMENTS.get(getattr(node.func, "id", getattr(node.func, "attr", "")))
        arguments = [each for index, each in enumerate(node.args) if index != types]
        self.generic_visit(_with(node, args=arguments))
