"""The public package: its names, the imports that it causes, and its requirements."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

import vitviz
from tests.support.commands import DINO, TIMM, write_dino, write_timm
from tests.support.example import ROOT
from tests.support.sources import parsed
from vitviz.errors.extras import REQUIREMENTS, needs, optional

MODULES = sorted((ROOT / "vitviz").rglob("*.py"))
PARTICIPLES = {"told", "said", "seen", "asked", "kept", "shown", "wanted", "linked", "passed", "mixed"}


# Names.


def test_type_checkers_see_what_is_imported_on_first_use() -> None:
    block = next(node for node in parsed(Path(vitviz.__file__)).body if isinstance(node, ast.If))
    statements = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "vitviz"]
    stated = {alias.name: node.module for node in statements for alias in node.names}
    assert stated == vitviz._MODULES and stated.keys() == set(vitviz.__all__) <= set(dir(vitviz))
    modules = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module == "vitviz"]
    assert sorted(alias.name for node in modules for alias in node.names) == sorted({*ROOMS} - INTERNAL)


def test_packages_and_what_is_called_are_found_by_tab() -> None:
    assert {"figure", "film", "list_models", "run_batch", *sorted({*ROOMS} - INTERNAL)} <= set(dir(vitviz))


def test_no_name_hides_a_package() -> None:
    """``vitviz.metrics`` is the package in every order of imports."""
    assert not set(ROOMS) & set(vitviz.__all__)
    packages = [module for module in MODULES if module.name == "__init__.py" and module.parent != ROOT / "vitviz"]
    for package in packages:
        inner = {path.parent.name for path in package.parent.glob("*/__init__.py")}
        name = ".".join(package.parent.relative_to(ROOT).parts)
        imports = [node for node in parsed(package).body if isinstance(node, ast.ImportFrom) and node.module != name]
        assert not inner & {alias.asname or alias.name for node in imports for alias in node.names}, package


@pytest.mark.parametrize("name", [name for name in vitviz.__all__ if not name.isupper()])
def test_every_public_name_is_documented(name: str) -> None:
    public = getattr(vitviz, name)
    assert len(inspect.getdoc(public) or "") > 20
    assert public.__doc__ is not None, "inherited from its base"
    # A dataclass without a docstring gets its signature as one.
    assert not public.__doc__.startswith(f"{name}(")


def documented_members() -> list[tuple[str, object]]:
    """Public methods and properties that vitviz itself defines, of every public class."""
    classes = [value for name in vitviz.__all__ if inspect.isclass(value := getattr(vitviz, name))]
    return [
        (f"{kind.__name__}.{name}", member.fget if isinstance(member, property) else inspect.unwrap(member))
        for kind in classes
        for name, member in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    ]


# One word says all about these.
SELF_EXPLAINING = {
    "AttentionTrace.layers",
    "AttentionTrace.heads",
    "TokenLayout.prefix_count",
    "TokenLayout.patch_count",
    "TokenLayout.token_count",
}


def test_every_public_method_is_documented() -> None:
    members = documented_members()
    assert len(members) > 30
    bare = {name for name, member in members if not inspect.getdoc(member)}
    assert bare <= SELF_EXPLAINING


def test_every_error_is_a_vitviz_error() -> None:
    public = [getattr(vitviz, name) for name in vitviz.__all__]
    errors = [value for value in public if inspect.isclass(value) and issubclass(value, Exception)]
    assert len(errors) >= 7
    assert all(issubclass(error, vitviz.VitvizError) for error in errors)


# Modules that an import loads.

STEPS = (
    "vitviz.attribution, vitviz.visualization.heatmaps",
    "vitviz.analysis, vitviz.cli.declarations",
    "vitviz.ui, vitviz.ui.explorer.inline",
    "vitviz.evaluation.head_picture, scipy.stats",
    "huggingface_hub",
)
HEAVY = {"gradio", "huggingface_hub", "matplotlib", "scipy"}
# Cannot be imported in the process below before the hub's client is: torch takes tqdm where it finds it, which would
# hide that vitviz does.
ABSENT = ("tqdm", "tensorboard")
# What no public name needs before it is called, though `from vitviz import *` imports all of them.
UNUSED = (
    *("callbacks", "cli", "training", "ui.app", "ui.server", "worker"),
    *("weights.conversion", "weights.families", "weights.formats.files", "weights.hub", "weights.metadata.beside"),
    *("weights.modules", "weights.checkpoint_sources", "weights.packages", "weights.read", "weights.text_tower"),
)
# Rooms that are imported on first use.
LAZY = ("callbacks", "cli", "evaluation", "training", "ui", "worker")
INTERNAL = {"caching", "cli", "system", "worker"}
ROOMS = sorted(
    {path.relative_to(ROOT / "vitviz").parts[0].removesuffix(".py") for path in MODULES} - {"__init__", "__main__"}
)


@dataclass(frozen=True)
class Imports:
    """What a fresh interpreter imports, in this order.

    Args:
        early: rooms of :data:`LAZY` that are there once vitviz is.
        named: all modules of vitviz once every public name was imported.
        loaded: top-level names of all modules after each of :data:`STEPS`.
        called: names of vitviz in the documents that could be imported.
        rooms: the names of all modules directly in vitviz, each as an attribute of it.
    """

    early: list[str]
    named: list[str]
    loaded: dict[str, list[str]]
    called: list[str]
    rooms: list[str]


@pytest.fixture(scope="module")
def imports() -> Imports:
    texts = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    calls = sorted({name for text in texts for name in re.findall(r"`vitviz\.((?:\w+\.)*\w+)", text)})
    lines = ["import importlib, json, operator, sys", "loaded = {}"]
    lines += [f"sys.modules[{name!r}] = None" for name in ABSENT]
    lines += ["import vitviz", f"early = [name for name in {LAZY!r} if name in vars(vitviz)]"]
    lines += ["from vitviz import *", "named = [name for name in sys.modules if name.startswith('vitviz')]"]
    for step in STEPS:
        if "huggingface_hub" in step:
            lines += ["del sys.modules['tqdm']"]
        lines += [f"import {step}", f"loaded[{step!r}] = sorted({{name.partition('.')[0] for name in sys.modules}})"]
    lines += [
        "del sys.modules['tensorboard']",
        f"called = [name for name in {calls!r} if operator.attrgetter(name)(vitviz) is not None]",
        f"rooms = [getattr(vitviz, name).__name__ for name in {ROOMS!r}]",
        "print(json.dumps([early, named, loaded, called, rooms]))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return Imports(*json.loads(done.stdout))


@pytest.mark.process
def test_importing_the_methods_loads_nothing_heavy(imports: Imports) -> None:
    names = set(imports.loaded[STEPS[0]])
    assert {"vitviz", "torch"} <= names and not names & HEAVY


@pytest.mark.process
def test_importing_vitviz_loads_nothing_that_only_the_app_a_download_or_a_training_needs(imports: Imports) -> None:
    # The process has neither tqdm nor tensorboard, so importing them would fail.
    assert not HEAVY.intersection(imports.loaded["vitviz.analysis, vitviz.cli.declarations"])


@pytest.mark.process
def test_importing_every_name_loads_nothing_that_only_opening_a_checkpoint_needs(imports: Imports) -> None:
    assert {"vitviz.analysis.encoder", "vitviz.ui.explorer.inline", "vitviz.weights.load"} <= set(imports.named)
    assert [part for part in UNUSED if find_spec(f"vitviz.{part}") is None] == []
    assert [name for name in imports.named if name.startswith(tuple(f"vitviz.{part}" for part in UNUSED))] == []


@pytest.mark.process
def test_the_explorer_of_a_notebook_needs_no_gradio(imports: Imports) -> None:
    assert "gradio" not in imports.loaded[STEPS[2]]


@pytest.mark.process
def test_the_tests_above_can_fail(imports: Imports) -> None:
    assert HEAVY.intersection(imports.loaded[STEPS[3]]) == {"matplotlib", "scipy"}
    assert "huggingface_hub" in imports.loaded[STEPS[-1]]


@pytest.mark.process
def test_every_module_is_imported_when_it_is_used_and_not_before(imports: Imports) -> None:
    assert imports.rooms == [f"vitviz.{name}" for name in ROOMS]
    assert set(LAZY) <= set(ROOMS) and imports.early == []


@pytest.mark.process
def test_every_function_that_the_documents_call_exists(imports: Imports) -> None:
    assert {"METHODS", "attribution", "cost", "load"} <= set(imports.called)


# Requirements.


def imported(statements: Iterable[ast.AST]) -> set[str]:
    """Top-level names of what statements import that is not of Python or vitviz itself."""
    names = set()
    for node in statements:
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"vitviz"}


def distributions(lines: list[str]) -> set[str]:
    """Names of the distributions in requirement lines."""
    return {re.split(r"[<>=!~;\[ ]", line)[0].lower() for line in lines if line and not line.startswith("#")}


def in_pyproject(name: str) -> list[str]:
    """The strings of a list in pyproject.toml."""
    found = re.search(rf"^{name} = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return re.findall(r'^ *"(.*?)"', found[1], re.MULTILINE)


def extra(*names: str) -> set[str]:
    """The import names of what extras install."""
    found = distributions([line for name in names for line in in_pyproject(name)])
    return {IMPORTED_AS.get(name, name) for name in found}


IMPORTED_AS = {"pillow": "PIL", "open_clip_torch": "open_clip", "pillow-heif": "pillow_heif"}
# What an extra brings, and the module or folder that imports it.
EXTRAS = {
    "atlas": ({"duckdb"}, "datasets/atlas.py"),
    "batch": ({"pyarrow"}, "datasets/arrow.py"),
    "captum": ({"captum"}, "attribution/pixels.py"),
    "heif": ({"pillow_heif"}, "images/decoding.py"),
    "hub": ({"datasets"}, "datasets/hub_data.py"),
    "notebook": ({"anywidget"}, "ui/explorer/selection.py"),
    "ray": ({"ray"}, "datasets/cluster.py"),
    "open_clip": ({"open_clip"}, "weights"),
    "text": ({"open_clip", "transformers"}, "weights/text_tower.py"),
    "timm": ({"timm"}, "weights/packages.py"),
    "transformers": ({"transformers"}, "weights/packages.py"),
    "verify": ({"open_clip", "timm", "torchvision", "transformers"}, "weights/verify.py"),
    "video": ({"av"}, "video/clip_facts.py"),
    "vlm": ({"transformers"}, "cli/answering.py"),
}


def in_part(path: Path, part: str) -> bool:
    return path.is_relative_to(ROOT / "vitviz" / part)


@pytest.mark.slow
def test_what_is_imported_is_required_and_what_an_extra_brings_is_imported_when_it_is_used() -> None:
    required, app = extra("dependencies"), extra("dependencies", "app")
    everything: set[str] = set()
    for path in MODULES:
        always = app if in_part(path, "ui") else required
        brought = [packages for packages, part in EXTRAS.values() if in_part(path, part)]
        found = imported(ast.walk(parsed(path)))
        assert imported(parsed(path).body) <= always, path
        assert found <= always.union(*brought), path
        everything |= found
    assert app - {"vitviz"} <= everything


@pytest.mark.parametrize("name", EXTRAS)
def test_an_extra_brings_what_its_module_imports(name: str) -> None:
    assert extra(name) - {"vitviz"} == EXTRAS[name][0]


def test_messages_propose_the_packages_and_versions_of_the_extras() -> None:
    """No package index has vitviz itself, so that a message proposes none of its extras."""
    names = (*EXTRAS, "app", "mcp", "train")
    stated = {line.partition(";")[0] for name in names for line in in_pyproject(name)}
    for module, requirements in REQUIREMENTS.items():
        assert set(requirements.split()) <= stated, module
    assert needs("this", "gradio").endswith(" 'starlette>=1.0.1' 'torch>=2.10'")
    brought = set().union(*(packages for packages, _ in EXTRAS.values()), extra("train"))
    assert brought - {"torchvision"} <= {*REQUIREMENTS}
    texts = [path.read_text() for path in MODULES] + [path.read_text() for path in (ROOT / "docs").glob("*.md")]
    assert not [text for text in texts if re.search(r"pip install \S*vitviz\[", text)]


@pytest.mark.parametrize("cause", [None, RuntimeError("operator torchvision::nms does not exist")])
def test_a_package_that_does_not_load_says_why(cause: Exception | None) -> None:
    with pytest.raises(vitviz.ConfigError) as found, optional("vitviz ask"):
        raise ModuleNotFoundError("Could not import module 'AutoProcessor'") from cause
    reason = f"{type(cause).__name__}: '{cause}'" if cause else 'ModuleNotFoundError: "Could not import'
    assert str(found.value).startswith(f"vitviz ask: a package that is installed does not load: {reason}")
    assert str(found.value).endswith("; expected the torchvision that fits your torch") == bool(cause)


def test_a_torchvision_of_another_build_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = "raise ImportError('Could not import a part') from RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / "timm.py").write_text(late)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(vitviz.CheckpointError) as found:
        vitviz.load("timm:vit_tiny_patch16_224")
    assert str(found.value) == (
        "timm: opening vit_tiny_patch16_224: RuntimeError: operator torchvision::nms does not exist; where torchvision "
        "was built for another torch, both from one index of packages fit: "
        "pip uninstall torch torchvision, then pip install torch torchvision"
    )


def test_layouts_of_ours_open_without_packages_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("timm", "transformers", "open_clip", "torchvision"):
        monkeypatch.setitem(sys.modules, package, None)
    assert vitviz.load().engine == vitviz.load(write_dino(tmp_path), **DINO).engine == "own"
    assert vitviz.load(write_timm(tmp_path), **TIMM).engine == "own"
    with pytest.raises(vitviz.CheckpointError, match=r"^opening vit_tiny_patch16_224 needs timm: pip install 'timm>="):
        vitviz.load("timm:vit_tiny_patch16_224")


def test_training_needs_its_extra() -> None:
    assert extra("train") == {"tensorboard"}
    # tensorboard is imported by torch's writer, not by its own name.
    assert "from torch.utils.tensorboard import" in (ROOT / "vitviz" / "training" / "loop.py").read_text()


def test_make_app_installs_the_extra_of_the_app_alone() -> None:
    assert extra("app") == {"gradio", "pydantic", "starlette", "timm", "torch", "vitviz"}
    makefile = (ROOT / "Makefile").read_text()
    ((install, stamp),) = re.findall(r"^\$\(VENV\)/\.app: .*\n\t(.*)\n\t(.*)\n", makefile, re.MULTILINE)
    assert (install, stamp) == ("$(INSTALL) --editable '.[app]'", "@touch $@")


def test_the_requirements_of_a_space_are_those_of_the_app() -> None:
    """A Space installs this file before it has the package, so the file cannot name the extra."""
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    # The app asks for more of torch than the library does.
    asked = [*in_pyproject("dependencies"), *in_pyproject("app"), *in_pyproject("heif")]
    of_app = {re.split(r"[<>=]", line)[0]: line for line in asked}
    assert of_app.pop("vitviz[heif]") and lines == sorted(of_app.values())


def test_no_module_outgrows_what_can_be_read_at_once() -> None:
    assert [path for path in MODULES if len(path.read_text().splitlines()) > 400] == []
    assert [path for path in MODULES if not (ast.get_docstring(parsed(path)) or "").strip()] == []


def test_a_name_of_a_file_is_that_of_one_file_and_no_participle_is_a_name() -> None:
    files = sorted(path.stem for path in MODULES if not path.stem.startswith("__"))
    assert [one for one, other in pairwise(files) if one == other] == []
    nodes = [(path.stem, node) for path in MODULES for node in ast.walk(parsed(path))]
    names = {(file, getattr(node, "id", getattr(node, "arg", getattr(node, "name", "")))) for file, node in nodes}
    assert [each for each in sorted(names, key=str) if str(each[1]).strip("_") in PARTICIPLES] == []
