"""What vitviz changes of Gradio and uvicorn: in few places, each of which docs/architecture.md names."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

import pytest

from tests.support.example import ROOT

PACKAGES = {"gradio", "gradio_client", "uvicorn", "starlette", "fastapi"}
# Objects of vitviz, and of the standard library.
OWN = {"self", "cls", "answer", "shared", *sys.stdlib_module_names}


def patches(source: str) -> Iterator[str]:
    """Every assignment to an attribute of another object, in a module that imports one of the packages."""
    nodes = list(ast.walk(ast.parse(source)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    # Base classes of records.
    names = [name for name in names if name != "gradio.data_classes"]
    if PACKAGES.isdisjoint(name.partition(".")[0] for name in names):
        return
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield ast.unparse(node.args[0])
        is_set = isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        if is_set and ast.unparse(node.value) not in OWN:
            yield ast.unparse(node)


def test_gradio_and_uvicorn_are_changed_in_few_places_which_the_documents_name() -> None:
    found = {
        path.relative_to(ROOT / "vitviz").as_posix(): each
        for path in sorted((ROOT / "vitviz").rglob("*.py"))
        for each in [sorted(set(patches(path.read_text())))]
        if each
    }
    assert found == {
        "ui/app.py": ["self.blocks._queue.progress_update_sleep_when_free", "self.blocks._queue.sleep_when_free"],
        "ui/server/connections.py": [
            *("Server.run_in_thread", "config.http_protocol_class", "config.loop", "config.proxy_headers"),
            *("config.timeout_graceful_shutdown", "config.timeout_keep_alive", "config.ws", "transport.max_size"),
        ],
        "ui/server/fetching.py": ["Api.async_move_resource_to_block_cache"],
    }
    assert all(f"`{name}`" in (ROOT / "docs" / "architecture.md").read_text() for name in found)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("setattr(routes, 'get', None)", ["routes"]),
        ("routes.App.get = None", ["routes.App.get"]),
        ("self.server.config.app = None", ["self.server.config.app"]),
        ("self.app = routes.App()", []),
    ],
)
def test_a_patch_is_found(line: str, found: list[str]) -> None:
    assert list(patches(f"from gradio import routes\n{line}")) == found
    assert list(patches(line)) == []
