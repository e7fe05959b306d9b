"""`vitviz verify` and ``load(..., verify=True)``: what the package computes is what vitviz shows, or it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import vitviz
from tests.support.foreign_folders import write_foreign
from tests.support.package_checkpoints import change, edit, write
from tests.support.reading import read_checkpoint
from vitviz.cli.command import main
from vitviz.errors.kinds import CheckpointError
from vitviz.weights.verify import SAME_MODEL, TOLERANCE, attention_bound, compare, verify

pytestmark = pytest.mark.parity

PHOTO = Path(__file__).parents[2] / "assets" / "chelsea.jpg"
SIZES = ("32×32", "48×48", "24×40")
every_package = pytest.mark.parametrize("package", ["timm", "transformers"])


def run(*arguments: object) -> int:
    return main(["verify", *map(str, arguments)])


@every_package
def test_the_packages_own_numbers_are_found_exact(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write(package, tmp_path), "--size", "48", "--size", "24x40") == 0
    printed, error = capsys.readouterr()
    lines = printed.splitlines()
    assert f"of {package} " in lines[0] and lines[-1] == "Every number matches the package's."
    outputs = (f"output for {what}" for what in ("the image", *(f"noise of {size}" for size in SIZES)))
    for row in ("pixels of the image", *outputs):
        assert any(line.startswith(row) and line.endswith("yes") for line in lines), row
    for layer in (0, 1):
        assert any(line.startswith(f"attention, layer {layer} ") and line.endswith("yes") for line in lines)
    assert "not compared" not in printed
    assert error == ""


# Not exact.


def test_a_weight_that_only_the_package_reads_is_seen_in_its_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write("timm", tmp_path)
    reading = read_checkpoint(folder)
    change(folder, "blocks.1.attn.qkv.weight", 0.1)
    found = verify(reading, PHOTO)
    assert not found.exact
    wrong = {each.quantity for each in found.comparisons if not each.exact}
    assert wrong == {"output for noise of 32×32", "output for the image", "attention, layer 1"}
    assert found.sentence.startswith("small: not the numbers of VisionTransformer of timm")
    assert "attention, layer 1 differs by " in found.sentence and "layer 0" not in found.sentence


def test_what_a_user_says_wrongly_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write("transformers", tmp_path)
    assert run(folder, "--activation", "relu") == 1
    printed = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split()[-1] for line in printed.splitlines() if "allowed" in line}
    assert rows == {
        "pixels of the image": "yes",
        "output for noise of 32×32": "no",
        "output for the image": "no",
        "attention, layer 0": "yes",
        "attention, layer 1": "no",
    }
    assert printed.endswith("Not every number matches the package's.\n")
    with pytest.raises(CheckpointError, match=r"not the numbers of .*output for noise of 32×32 differs by .*allowed"):
        vitviz.load(folder, activation="relu", verify=True)


def test_pixels_that_differ_are_seen(tmp_path: Path) -> None:
    folder = write("transformers", tmp_path)
    reading = read_checkpoint(folder)
    edit(folder, lambda values: values.update(image_mean=[0.4, 0.5, 0.5]), "preprocessor_config.json")
    found = verify(reading, PHOTO)
    assert {each.quantity for each in found.comparisons if not each.exact} >= {"pixels of the image"}
    assert all(each.exact for each in found.comparisons if "noise" in each.quantity)


def test_what_no_file_states_leaves_the_rest_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write("transformers", tmp_path)
    (folder / "preprocessor_config.json").unlink()
    assert run(folder) == 0
    printed = capsys.readouterr().out
    assert "not compared: pixels: no file in the folder states" in printed and "output for the image" in printed


# Nothing to compare with.


@pytest.mark.parametrize("file", [True, False])
def test_a_checkpoint_that_names_no_package(file: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source: object = "vitviz-photos"
    if file:
        source = write("transformers", tmp_path) / "mine.safetensors"
        (tmp_path / "small" / "model.safetensors").rename(source)
        # The configuration may be that of either.
        (tmp_path / "small" / "other.safetensors").write_bytes(b"")
    overrides = ("image-size=32", "heads=4", "activation=gelu", "norm-epsilon=1e-12", "pooling=cls")
    assert run(source, *[f"--{fact}" for fact in overrides if file]) == 2
    error = capsys.readouterr().err
    assert "no file beside it names a package; expected a folder with" in error and error.count("\n") == 1
    if not file:
        with pytest.raises(CheckpointError, match="nothing to verify against"):
            vitviz.load(verify=True)


def test_a_watched_model_has_nothing_to_compare_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = write_foreign("Swin", tmp_path)
    assert run(folder) == 0
    assert f"nothing to compare: {SAME_MODEL}" in capsys.readouterr().out
    assert vitviz.load(folder, verify=True).engine == "module"


# Figures.


def test_a_difference_is_held_to_the_size_of_the_reference() -> None:
    theirs = torch.tensor([0.5, 100.0])
    assert compare("output", theirs + torch.tensor([0.9e-5, 0.9e-3]), theirs).exact
    small, large = (compare("output", theirs + torch.tensor(by), theirs) for by in ([2e-5, 0.0], [0.0, 2e-3]))
    assert (small.exact, large.exact) == (False, False)
    assert small.bound == pytest.approx(1e-5) and large.bound == pytest.approx(1e-3)
    assert small.difference == pytest.approx(2e-5, rel=0.1) and large.difference == pytest.approx(2e-3, rel=0.1)


def test_attention_is_held_to_how_far_its_scores_lie_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    for apart in (0.5, 4.0, 40.0, 400.0):
        scores = apart * torch.rand(50, 9, dtype=torch.float64, generator=generator)
        scores[:, :2] = torch.tensor([0.0, apart])
        theirs, bound = scores.softmax(-1), attention_bound(scores.softmax(-1))
        expected = TOLERANCE * max(1.0, min(apart, 88) / 2)
        torch.testing.assert_close(bound, torch.full_like(bound, expected), rtol=0.02, atol=0)
        signs = torch.randint(2, scores.shape, generator=generator) * 2 - 1
        assert compare("attention", (scores + TOLERANCE * min(apart, 88) * signs).softmax(-1), theirs, bound).exact
        assert not compare("attention", theirs + 1.1 * bound, theirs, bound).exact
    # Without a spread the tolerance is that of all other numbers.
    assert attention_bound(torch.full((2, 4), 0.25)).tolist() == [[pytest.approx(TOLERANCE)]] * 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_never_exact(value: float) -> None:
    for ours, theirs in ((value, 1.0), (1.0, value), (value, value)):
        assert not compare("output", torch.tensor([0.0, ours]), torch.tensor([0.0, theirs])).exact
