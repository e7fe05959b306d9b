"""The table of families in the documentation: ``python -m tests.language.table`` writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

import vitviz
from tests.language.families import FAMILIES, REFUSED, make
from tests.support.example import ROOT
from vitviz import Answer, ConfigError

PAGE = ROOT / "docs" / "words.md"
PIXELS = np.random.default_rng(0).integers(0, 255, (190, 310, 3), dtype=np.uint8)
WORDS = 4
BEGIN, END = "<!-- families -->", "<!-- /families -->"
HEAD = "| class of transformers | reads the picture by | tokens of a picture of 310×190 pixels |\n| --- | --- | --- |\n"


def asked(name: str) -> tuple[Any, Answer]:
    """A module of a family, and what it answers."""
    module, processor, question = make(name)
    model = vitviz.load(module, processor=processor)
    return module, vitviz.ask(Image.fromarray(PIXELS), question, model, max_new_tokens=WORDS)


def row(module: Any, answer: Answer) -> str:
    """The row of a family that opens."""
    attention = "cross-attention" if answer.layers[0].is_cross else "self-attention"
    (rows, columns), tokens = answer.attention(0, 0).shape, len(answer.grids[0].index)
    kind = f"{rows} rows of {columns}" if rows * columns == tokens else "of parts that overlap or differ in size"
    return f"| {type(module).__name__} | {attention} | {tokens}: {kind} |"


def refused_row(error: ConfigError) -> str:
    """The row of a family that is refused."""
    name, _, reason = str(error).partition(": ")
    return f"| {name} | – | refused: {reason.partition(';')[0]} |"


def _row(name: str) -> str:
    try:
        return row(*asked(name))
    except ConfigError as error:
        return refused_row(error)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = HEAD + "\n".join(map(_row, sorted(FAMILIES, key=REFUSED.__contains__)))
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
