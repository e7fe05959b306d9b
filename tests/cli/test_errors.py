"""What goes wrong is one line, and leaves no file."""

from __future__ import annotations

from pathlib import Path

import pytest

import vitviz
from tests.support.commands import Capture, write_dino, write_timm
from vitviz.cli.command import main
from vitviz.cli.parsing import parse

# What goes wrong.

ERRORS: dict[str, tuple[list[str], str]] = {
    "no image": (["attention", "gone.png"], "gone.png: no such file"),
    "too much discarded": (["rollout", "{photo}", "--discard-ratio", "1"], "--discard-ratio 1.0: expected a number"),
    "no number": (["rollout", "{photo}", "--residual-weight", "nan"], "--residual-weight nan: expected a number"),
    "percentiles out of order": (
        ["attention", "{photo}", "--percentiles", "98", "2"],
        "--percentiles 98.0 2.0: expected two numbers from 0 to 100, the lower one first",
    ),
    "percentiles of ranks": (
        ["attention", "{photo}", "--percentiles", "2", "98", "--scale", "rank"],
        "--percentiles: the ends of a robust scale; expected --scale robust, or none, not rank",
    ),
    "contradiction": (
        ["rollout", "{photo}", "--reference", "vit-explain", "--start-layer", "1"],
        "--residual-weight 0.5 and --start-layer 1: vit-explain knows only",
    ),
    "no memory allowed": (
        ["rollout", "{photo}", "--max-bytes", "1"],
        "--max-bytes 1; no resolution fits, or allow more by --max-bytes",
    ),
    "the image itself": (
        ["attention", "{photo}", "-o", "{photo}"],
        ": the input itself; expected another file to write",
    ),
    "a page over its image": (["explore", "{photo}", "-o", "{photo}"], ": the input itself; expected another file"),
    "numbers over their image": (["probe", "{photo}", "-o", "{photo}"], ": the input itself; expected another file"),
    "numbers that are called a picture": (["probe", "{photo}", "-o", "n.png"], "expected a name that ends with '.npz'"),
    "heads that are called a table": (["describe-heads", "{folder}", "-o", "h.csv"], "name that ends with '.json'"),
    "no such folder": (
        ["attention", "{photo}", "-o", "gone/map.png"],
        "gone/map.png: cannot be written (no folder gone)",
    ),
    "page a folder": (["explore", "{photo}", "-o", "{folder}"], "cannot be written"),
    "no picture to explore": (["explore", "--quiet"], "IMAGE: none given; expected one, or --with-model"),
    "a resolution beside a model": (
        ["explore", "--with-model", "--resolution", "32"],
        "--resolution 32: a page with its model opens with",
    ),
    "a link beside a model": (
        ["explore", "--with-model", "--link", "?method=rollout"],
        "opens with the model's own input",
    ),
    "a precision beside a model": (
        ["explore", "--with-model", "--precision", "bfloat16"],
        "computes in bfloat16, and the page in float32",
    ),
    **{
        found: (
            ["relevance", "{photo}", *words],
            f"vitviz: {found}: more than one target of the map; expected options of",
        )
        for found, words in {
            "--target --text": ["--target", "dog", "--text", "a dog"],
            "--text --like": ["--text", "a dog", "--like", "other.png"],
            "--against --like-patch": ["--against", "dog", "--like-patch", "0,0"],
            "--against --margin": ["--against", "0", "--margin"],
            "--target --margin --like": ["--target", "0", "--margin", "--like", "other.png"],
        }.items()
    },
    "facts left open": (["inspect", "{timm}"], "or --heads …, --norm-epsilon … (usually 1e-06)"),
    "no number of heads": (["inspect", "{timm}", "--heads", "x"], "vitviz: --heads x: expected a whole number"),
    "no size": (["inspect", "{timm}", "--image-size", "24x"], "vitviz: --image-size 24x: expected one or two"),
    "no classifier": (["evaluate", "{folder}", "--checkpoint", "{dino}", "--heads", "3"], "dino has no classifier"),
    "no training possible": (["train", "{folder}", "{folder}/run", "--heads", "5"], "expected a multiple of --heads 5"),
    "no augmentation": (
        ["train", "{folder}", "{folder}/run", "--mix", "3"],
        "--mix 3.0: expected a number from 0 to 1",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_one_line_and_leaves_no_file(
    photo: Path, checkpoint: Path, capsys: Capture, arguments: list[str], message: str
) -> None:
    names = {"photo": photo, "checkpoint": checkpoint, "folder": photo.parent}
    for name, write in {"timm": write_timm, "dino": write_dino}.items():
        if f"{{{name}}}" in arguments:
            names[name] = write(photo.parent)
    before = sorted(photo.parent.iterdir())
    assert main([argument.format(**names) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vitviz: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert sorted(photo.parent.iterdir()) == before and list(Path().iterdir()) == []


WRONG = [
    (["draw"], "vitviz: no command draw; vitviz --help lists all"),
    (["Rolout"], "vitviz: no command Rolout; did you mean 'rollout'?"),
    (["check-method"], "; did you mean 'check-methods'?"),
    (["--verson"], "vitviz: no option --verson; did you mean '--version'?"),
    (["rollout", "a.png", "--hed-fusion", "max"], "rollout: no option --hed-fusion; did you mean '--head-fusion'?"),
    (["rollout", "a.png", "--model=m.pth"], "vitviz rollout: no option --model; did you mean '--checkpoint'?"),
    (["rollout", "--head", "max", "a.png"], "vitviz rollout: no option --head; did you mean '--heads'?"),
    (["rollout", "a.png", "--xyz=3"], "vitviz rollout: no option --xyz; vitviz rollout --help lists all"),
    (
        ["atlas", "a", "b", "c"],
        "vitviz atlas: 'c' is one argument too many; expected vitviz atlas RESULTS OUTPUT [OPTIONS]",
    ),
    (["rollout", "a.png", "--scale", "lineer"], "; did you mean 'linear'?"),
    (["inspect", "a.pth", "--heads"], "argument --heads: expected one argument"),
    (["train", "a", "b", "--heads", "x"], "argument --heads: invalid int value: 'x'"),
    (["verify", "a", "--size=-8"], "argument --size: '-8': expected HEIGHTxWIDTH or one number"),
    (["attention", "a.png", "--query", "2,x"], "argument --query: '2,x': expected ROW,COLUMN, both whole numbers"),
    (["attention", "a.png", "--query", "-1,0"], "--query"),
    (["evaluate", "a", "--precision", "int8"], "argument --precision: invalid choice: 'int8'"),
    (["inspect", "a.pth", "--device", "cpu"], "vitviz inspect: no option --device"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_what_is_typed_wrong_is_one_line(capsys: Capture, words: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith("vitviz") and message in error


@pytest.mark.parametrize(("words", "usage"), [(["train", "a"], "IMAGES OUTPUT"), (["video", "a.mp4"], "SOURCE OUTPUT")])
def test_what_is_missing_is_told_with_the_usage(capsys: Capture, words: list[str], usage: str) -> None:
    with pytest.raises(SystemExit):
        main(words)
    usage_line, error = capsys.readouterr().err.splitlines()
    assert usage_line == f"usage: vitviz {words[0]} {usage} [OPTIONS]"
    assert error == f"vitviz {words[0]}: the following arguments are required: output"


@pytest.mark.parametrize(("words", "status"), [([], 0), (["rollout"], 2), (["inspect"], 2)])
def test_a_bare_command_prints_its_help(capsys: Capture, words: list[str], status: int) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == status
    shown = capsys.readouterr()
    text = shown.err if status else shown.out
    assert text.startswith(" ".join(["usage: vitviz", *words])) and "--help" in text


def test_the_version_is_printed(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert (caught.value.code, capsys.readouterr().out) == (0, f"vitviz {vitviz.__version__}\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rollout", "a_b.png", "--head-fusion", "max"], {"images": ["a_b.png"], "head_fusion": "max"}),
        (["gradient-rollout", "a.png", "--start-layer=1"], {"start_layer": 1, "method": "gradient_rollout"}),
        (["rollout", "a.png", "-o", "maps", "b.png"], {"images": ["a.png", "b.png"], "output": "maps"}),
        (["rollout", "--", "--a_b.png"], {"images": ["--a_b.png"]}),
        (["rollout", "-", "-o", "-"], {"images": ["-"], "output": "-"}),
        (["attention", "a.png", "--query", "2, 3"], {"query": (2, 3)}),
        (["attention", "a.png", "--query", " 2 ,3 "], {"query": (2, 3)}),
        (
            ["inspect", "a.pth", "--heads", "6", "--image-size", "24x48", "--ignore", "head.*", "--ignore", "a.*"],
            {"overrides": ["heads=6", "image_size=24x48", "ignore=head.*", "ignore=a.*"]},
        ),
        (["rollout", "a.png"], {"overrides": [], "percentiles": None, "quiet": False, "json": False}),
        (["video", "a.mp4", "b.mp4", "--no-caption"], {"caption": False, "map": ("rollout", {})}),
    ],
)
def test_words_become_arguments(words: list[str], expected: dict[str, object]) -> None:
    _, options = parse(words)
    assert {name: options[name] for name in expected} == expected


def test_an_interrupt_is_told_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitviz.cli.checkpoints.read_source", interrupted)
    assert main(["attention", "a.png"]) == 130
    assert capsys.readouterr().err == "\nvitviz: interrupted\n"
