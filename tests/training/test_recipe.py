"""The script that made the network that ships still runs: soft labels, a step of training, and the checkpoint."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitviz import VisionTransformer, load

pytestmark = pytest.mark.long


def test_the_recipe_goes_from_a_state_to_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("recipe", Path(__file__).parents[2] / "checkpoints" / "recipe" / "make.py")
    assert spec is not None and spec.loader is not None
    make = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "recipe", make)
    spec.loader.exec_module(make)
    monkeypatch.setattr(make, "BATCH_SIZE", 4)
    monkeypatch.setattr(make, "IMAGES_PER_EPOCH", 4)
    random = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 100)):
        for label in ("a", "b"):
            (tmp_path / split / label).mkdir(parents=True)
            for number in range(count):
                noise = Image.fromarray(random.integers(0, 255, (8, 8, 3), dtype=np.uint8))
                noise.save(tmp_path / split / label / f"{number:05d}.webp")
    paths = sorted(path.relative_to(tmp_path / "train").as_posix() for path in tmp_path.glob("train/*/*.webp"))
    features = torch.randn(len(paths), 300, generator=torch.Generator().manual_seed(0))
    make.write_soft_labels(tmp_path / "soft.npz", paths, ["a", "b"], list(range(len(paths))), features)
    facts = {"classes": ["a", "b"], "training images": len(paths)}
    start = VisionTransformer(make.NETWORK.model_config(2))
    make.save_state(tmp_path / "start.pt", None, facts, 60, start)
    make.train(tmp_path, tmp_path / "soft.npz", "end", tmp_path / "start.pt", tmp_path / "end.pt", 1)
    end = torch.load(tmp_path / "end.pt", weights_only=True)
    assert end["epoch"] == 61 and not torch.equal(end["averaged"]["classifier.weight"], start.classifier.weight)
    make.finish(tmp_path, tmp_path / "end.pt", tmp_path / "out.safetensors")
    model = load(tmp_path / "out.safetensors")
    assert model.labels == ("a", "b") and model.preprocessing.detail == 56
    assert "at 168 pixels" in model.card["top-1 accuracy"]
