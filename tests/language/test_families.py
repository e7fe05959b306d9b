"""Attention and places of every family of transformers that can be built small, against its eager matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch.overrides import TorchFunctionMode

from tests.language.families import FAMILIES, REFUSED
from tests.language.table import PAGE, PIXELS, WORDS, asked, refused_row, row
from tests.support.comparison import closeness
from vitviz import Answer, ConfigError

pytestmark = [
    pytest.mark.parity,
    # transformers' image processors on Pillow.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]
SQUARES, SIDE = 6, 14
TABLE = PAGE.read_text(encoding="utf-8")
# Pixels by which an edge is off, and by which resampling reaches further.
OFF, REACH = 3, 15
close = closeness(tolerance=1e-5)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in REFUSED])
def test_attention_is_that_of_eager_and_places_are_those_of_repainted_squares(name: str) -> None:
    if name == "smolvlm":
        pytest.importorskip("num2words")
    module, answer = asked(name)
    assert row(module, answer) in TABLE
    found, inputs = [token.number for token in answer.tokens], answer.prompt.inputs()
    check_places(module, answer)
    options = {"max_new_tokens": WORDS, "do_sample": False, "return_dict_in_generate": True}
    with torch.no_grad():
        plain = module.generate(**inputs, **options)
        module.set_attn_implementation("eager")
        eager = module.generate(**inputs, **options, output_attentions=True)
    assert found == plain.sequences[0, -WORDS:].tolist() == eager.sequences[0, -WORDS:].tolist()
    is_cross = answer.layers[0].is_cross
    steps = (is_cross and getattr(eager, "cross_attentions", None)) or eager.attentions
    if name in ("blip", "idefics"):
        steps = cross_attention_of(module, inputs)
    for step in range(WORDS):
        matrices = [each for each in steps[step] if not is_cross or each.shape[-1] == answer.layers[0].prompt]
        for number, (layer, matrix) in enumerate(zip(answer.layers, matrices, strict=True)):
            # Another head would be noticed.
            assert matrix[0, :, -1].std(0).max() > 1e-3
            # A sliding window has dropped the first tokens, or has zeros in their place.
            dropped = 0 if is_cross else layer.prompt + step - matrix.shape[-1]
            close(answer.weights(answer.tokens[step], number), F.pad(matrix[0, :, -1], (dropped, 0)))


def cross_attention_of(module: Any, inputs: Any) -> Any:
    """Attention to the picture that ``generate`` does not return, by step and layer."""
    found = list[torch.Tensor]()
    parts = [part for name, part in module.named_modules() if name.endswith(("crossattention.self", ".cross_attn"))]
    hooks = [part.register_forward_hook(lambda _, args, output: found.append(output[1])) for part in parts]
    with torch.no_grad():
        module.generate(**inputs, max_new_tokens=WORDS, do_sample=False)
    for hook in hooks:
        hook.remove()
    return [found[start : start + len(parts)] for start in range(0, len(found), len(parts))]


class Local(TorchFunctionMode):
    """Attention that returns zeros, and the keys of one of its calls."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.keys = number, torch.zeros(0)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is not F.scaled_dot_product_attention:
            return result
        if self.number == 0:
            self.keys = args[1][0].movedim(-2, 0).flatten(1)
        self.number -= 1
        return torch.zeros_like(result)


def check_places(module: Any, answer: Answer) -> None:
    """Repaint squares of the picture: exactly the tokens change that stand for a part which a square touches."""
    grid, random = answer.grids[0], np.random.default_rng(1)
    left, top, right, bottom = grid.boxes.T
    counts = []

    class Count(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is F.scaled_dot_product_attention:
                counts.append(args[1].shape[-2])
            return function(*args, **(kwargs or {}))

    with torch.no_grad(), Count():
        module.generate(**answer.prompt.inputs(), max_new_tokens=1, do_sample=False)
    is_cross = answer.layers[0].is_cross
    first = len(counts) - len(answer.recorder.layers)
    if first < answer.recorder.skipped:
        # Of attention that is written by hand, nothing is seen here.
        assert answer.attention(0, 0).shape == (4, 4)
        return
    if is_cross:
        first += next(place for place, keys in enumerate(counts[first:]) if keys == answer.layers[0].prompt)

    def keys(pixels: np.ndarray) -> torch.Tensor:
        inputs = answer.prompt.inputs([Image.fromarray(pixels)])
        with torch.no_grad(), Local(first) as local:
            module.generate(**inputs, max_new_tokens=1, do_sample=False)
        return local.keys[grid.index]

    reference, hits = keys(PIXELS), 0
    for _ in range(SQUARES):
        y, x = random.integers(0, 190 - SIDE), random.integers(0, 310 - SIDE)
        pixels = PIXELS.copy()
        pixels[y : y + SIDE, x : x + SIDE] = random.integers(0, 255, (SIDE, SIDE, 3))
        is_changed = (keys(pixels) - reference).abs().amax(1) > 1e-6

        def touches(margin: float, x: int = x, y: int = y) -> torch.Tensor:
            across = (left < x + SIDE + margin) & (right > x - margin)
            return across & (top < y + SIDE + margin) & (bottom > y - margin)

        assert bool(is_changed[touches(-OFF)].all()), "a token does not change with its own part"
        assert not bool(is_changed[~touches(REACH)].any()), "a token changes with what it does not stand for"
        hits += int(is_changed.sum())
    assert hits >= SQUARES / 2


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_proved_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[name]) as found:
        asked(name)
    assert refused_row(found.value) in TABLE
