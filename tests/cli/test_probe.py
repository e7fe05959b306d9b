"""``vitviz probe`` prints what the library finds, and writes it where that is asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.commands import Capture, write_dino
from vitviz import analyze, load
from vitviz.cli.command import main
from vitviz.evaluation.probes import PROBES, probe


def test_every_probe_that_the_model_can_have_is_printed(photo: Path, checkpoint: Path, capsys: Capture) -> None:
    assert main(["probe", str(photo), "--checkpoint", str(checkpoint)]) == 0
    printed, analysis = capsys.readouterr().out, analyze(photo, load(checkpoint))
    for name, record in PROBES.items():
        findings = probe(analysis, name)
        assert f"{record.title} ({name})\n" in printed
        assert findings.summary in " ".join(printed.split())
        for row in findings.rows:
            assert any(line.split() == " ".join(row).split() for line in printed.splitlines()), row


def test_one_probe_with_its_parameters(photo: Path, checkpoint: Path, capsys: Capture) -> None:
    options = ["--probe", "patch_similarity", "--query", "1,2", "--layer", "0", "--features", "keys"]
    assert main(["probe", str(photo), "--checkpoint", str(checkpoint), *options]) == 0
    printed = capsys.readouterr().out
    expected = probe(analyze(photo, load(checkpoint)), "patch_similarity", query=(1, 2), layer=0, features="keys")
    assert expected.summary in " ".join(printed.split()) and "Token norms" not in printed
    assert main(["probe", str(photo), "--probe", "token_norms", "--probe", "logit_lens", "--layer", "0"]) == 2
    assert "--layer: no option of --probe token_norms or logit_lens; expected nothing" in capsys.readouterr().err


@pytest.mark.slow
def test_numbers_and_pictures_are_written_where_asked(
    photo: Path, checkpoint: Path, tmp_path: Path, capsys: Capture
) -> None:
    file, folder = tmp_path / "found.npz", tmp_path / "new" / "pictures"
    options = ["--probe", "token_norms", "--probe", "prefix_mass", "-o", str(file), "--pictures", str(folder)]
    assert main(["probe", str(photo), "--checkpoint", str(checkpoint), *options]) == 0
    analysis = analyze(photo, load(checkpoint))
    with np.load(file) as found:
        expected = {**probe(analysis, "token_norms").arrays(), **probe(analysis, "prefix_mass").arrays()}
        assert set(found) == set(expected) == {"token_norms.norms", "prefix_mass.mass"}
        for name in found:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
    assert sorted(path.name for path in folder.iterdir()) == ["prefix_mass.mass.png", "token_norms.norms.png"]
    printed = capsys.readouterr().out
    assert f"2 measurements written to {file}\n2 pictures written to {folder}" in printed
    assert not list(tmp_path.glob("*.partial"))
    assert (
        main(["probe", str(photo), "--checkpoint", str(checkpoint), *options[:2], "--pictures", "/dev/null/here"]) == 2
    )
    assert "cannot be written (Not a directory)" in capsys.readouterr().err


def test_what_a_model_cannot_have_is_said_and_refused_by_name(photo: Path, tmp_path: Path, capsys: Capture) -> None:
    path = str(write_dino(tmp_path))
    options = ["--checkpoint", path, "--heads", "3"]
    assert main(["probe", str(photo), *options]) == 0
    sentence = "this model has no classifier, so tokens have no class"
    assert f"Logit lens: {sentence}.\n" in capsys.readouterr().out
    assert main(["probe", str(photo), *options, "--probe", "logit_lens"]) == 2
    assert capsys.readouterr().err == f"vitviz: logit_lens: {sentence}\n"
