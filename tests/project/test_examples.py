"""The examples in the docstrings of public names: one each, run in one folder with one model and one analysis."""

from __future__ import annotations

import doctest
import shutil
from typing import Any

import pytest
import torch

import vitviz
from tests.support.example import ASSETS
from vitviz.weights.snapshots import snapshot_path

# Those of networks that write, which transformers builds.
WRITING = ("Answer", "LanguageModel", "ask")
FLAGS = doctest.ELLIPSIS | doctest.REPORT_ONLY_FIRST_FAILURE


def example_of(name: str) -> doctest.DocTest:
    public = getattr(vitviz, name)
    return doctest.DocTestParser().get_doctest(public.__doc__ or "", {}, name, None, None)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The names that an example may use, and the folder of its files."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(ASSETS / "chelsea.jpg", folder / "cat.jpg")
    shutil.copy(ASSETS / "flower.jpg", folder)
    (folder / "empty").mkdir()
    torch.save({"weight": torch.zeros(2, 2)}, folder / "other.pth")
    snapshots = folder / "runs" / "mine"
    snapshots.mkdir(parents=True)
    sizes = dict.fromkeys(("image_height", "image_width", "patch_height", "patch_width", "width", "head_width"), 8)
    config = vitviz.ViTConfig(**sizes, depth=1, heads=1, mlp_width=8, classes=2)
    preparation = vitviz.Preprocessing(8, 8, (0.5,) * 3, (0.5,) * 3)
    for step in (100, 200):
        run = vitviz.Model("mine", vitviz.VisionTransformer(config), preparation, ("cat", "dog"))
        vitviz.save_checkpoint(snapshot_path(snapshots, step), run)
    model = vitviz.load()
    return {"vitviz": vitviz, "model": model, "analysis": vitviz.analyze(folder / "cat.jpg", model), "folder": folder}


@pytest.fixture(scope="module")
def writing_names() -> dict[str, Any]:
    from tests.language.families import make

    module, processor, _ = make("llava")
    return {"module": module, "processor": processor, "writer": vitviz.load(module, processor=processor)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.parity] * (name in WRITING)) for name in vitviz.__all__]
)
def test_the_example_of_a_public_name_is_true(
    name: str, names: dict[str, Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(names["folder"])
    example = example_of(name)
    assert example.examples
    example.globs = names | (request.getfixturevalue("writing_names") if name in WRITING else {})
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=report.append)
    assert not failed, "".join(report)
