"""What the command says and draws of an answer is the library's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitviz
from tests.language.families import make
from tests.reference_packages import transformers as hf
from tests.support.example import ROOT
from vitviz.cli import answering
from vitviz.cli.command import main
from vitviz.visualization import panels

pytestmark = [pytest.mark.parity, pytest.mark.slow]
PICTURE = ROOT / "assets/coffee.jpg"
ASK = ["ask", str(PICTURE), "what is this"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, processor, _ = make("llava")
    folder = tmp_path_factory.mktemp("llava")
    module.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def test_the_command_draws_a_panel_for_each_word_of_the_answer(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, processor, _ = make("llava")
    model = vitviz.load(module, processor=processor)
    answer = vitviz.ask(PICTURE, "what is this", model, text="a cat")
    options = ["--model", str(folder), "--text", "a cat", "--map", "relevance"]
    assert main([*ASK, *options[:-2], "--layer", "-1", "--head", "1", "--json"]) == 0
    of_head = json.loads(capsys.readouterr().out)["words"][1]
    assert of_head["values"][0] == pytest.approx(answer.attention("cat", -1, 1).values[0].tolist(), abs=1e-6)
    assert main([*ASK, *options, "-o", str(tmp_path / "words.png"), "--quiet"]) == 0
    assert capsys.readouterr().out.split()[:3] == ["a", "cat", "a"]
    with Image.open(tmp_path / "words.png") as picture:
        assert picture.width > 2 * picture.height
    assert main([*ASK, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [word["text"] for word in found["words"]] == ["a", "cat"]
    assert found["words"][1]["probability"] == pytest.approx(answer.words[1].probability, abs=1e-6)
    expected = answer.relevance("cat")
    assert found["words"][1]["values"][0] == pytest.approx(expected.values[0].tolist(), abs=1e-6)
    assert found["box"] == pytest.approx(expected.geometry.box)


def test_all_words_are_in_json_and_the_picture_says_how_many_it_shows(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "MAX_PANELS", 2)
    titles = list[str]()

    def figure(maps: Any, style: Any, *, names: Any, title: str) -> Any:
        assert len(names) == 2
        titles.append(title)
        # One scale for all words.
        assert style.scale.ends[1] >= max(each.scale(style).ends[1] for each in maps)
        assert len({each.scale(style) for each in maps}) == 1
        return panels.figure(maps, style, names=names, title=title)

    monkeypatch.setattr(answering, "figure", figure)
    options = ["--model", str(folder), "--text", "a cat is", "--device", "cpu", "--json"]
    assert main([*ASK, *options, "-o", str(tmp_path / "words.png")]) == 0
    output = capsys.readouterr()
    assert [word["text"] for word in json.loads(output.out)["words"]] == ["a", "cat", "is"]
    assert titles == ["what is this\na cat is: 2 of 3 words"] and "words.png: 2 of 3 words" in output.err


def test_the_network_computes_in_the_precision_that_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {}
    for precision in ("float32", "bfloat16"):
        module = hf.LlavaForConditionalGeneration.from_pretrained(folder, dtype=precision).eval()
        model = vitviz.load(module, processor=hf.AutoProcessor.from_pretrained(folder))
        answer = vitviz.ask(PICTURE, "what is this", model, text="a cat")
        assert main([*ASK, "--model", str(folder), "--text", "a cat", "--precision", precision, "--json"]) == 0
        found[precision] = [word["probability"] for word in json.loads(capsys.readouterr().out)["words"]]
        assert found[precision] == pytest.approx([word.probability for word in answer.words])
    assert found["float32"] != pytest.approx(found["bfloat16"])


def test_the_box_is_that_of_the_maps_and_an_answer_without_words_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", str(folder), "--map", "hiding"]
    assert main([*ASK, *options, "--text", "a", "--json"]) == 0
    with Image.open(PICTURE) as picture:
        assert json.loads(capsys.readouterr().out)["box"] == [0, 0, *picture.size]
    assert main([*ASK, *options, "--text", "</s>", "-o", str(tmp_path / "words.png")]) == 2
    assert "the answer has no words" in capsys.readouterr().err


def test_a_folder_that_transformers_does_not_open_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASK, "--model", str(tmp_path)]) == 2
    assert "transformers does not open it" in capsys.readouterr().err
    make("llava")[0].config.text_config.save_pretrained(tmp_path)
    assert main([*ASK, "--model", str(tmp_path)]) == 2
    assert ": the model takes no pictures, or writes nothing; expected one of" in capsys.readouterr().err
    make("llava")[0].config.save_pretrained(tmp_path)
    assert main([*ASK, "--model", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert ": processor: what prepares pictures and texts does not open: OSError" in message
    assert message.endswith(" …\n")


def test_a_layer_of_one_map_and_numbers_are_refused_by_the_names_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASK, "--model", "none", "--tokens", "0"]) == 2
    assert capsys.readouterr().err == "vitviz: --tokens 0: expected a whole number of at least 1\n"
    assert main([*ASK, "--model", "none", "--device", "cuda:9"]) == 2
    assert capsys.readouterr().err.startswith("vitviz: device 'cuda:9': ")
    for option, refusal in {"--layer=1": "--layer: of --map attention alone; rollout", "-q": "--map: of maps"}.items():
        assert main([*ASK, "--model", "none", "--map", "rollout", option]) == 2 and refusal in capsys.readouterr().err
