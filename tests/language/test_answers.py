"""What an answer says of its words: maps, ranking, second passes, several pictures, words and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitviz
from tests.language.families import make
from tests.support.comparison import closeness
from vitviz import Answer, ConfigError, ImageError, MethodError, QueryError
from vitviz.language.reading import rank_heads
from vitviz.language.text import Token, find_word, words_of

pytestmark = pytest.mark.parity
close = closeness(tolerance=1e-5)
PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 130, 3), dtype=np.uint8))
TEXT = "a cat is the dog"


@pytest.fixture(scope="module")
def made() -> Any:
    return make("llava")


@pytest.fixture(scope="module")
def answer(made: Any) -> Answer:
    module, processor, question = made
    model = vitviz.load(module, processor=processor)
    return vitviz.ask(PICTURE, question, model, text=TEXT)


# The text.


def test_a_text_that_is_given_is_written_and_has_the_probabilities_of_the_network(made: Any, answer: Answer) -> None:
    assert answer.text == TEXT and [word.text for word in answer.words] == TEXT.split()
    module, inputs = made[0], answer.prompt.inputs()
    ids = torch.cat([inputs.pop("input_ids"), torch.tensor([answer.prompt.model.ids(TEXT)])], 1)
    inputs.pop("attention_mask")
    with torch.no_grad():
        logits = module(input_ids=ids, **inputs).logits[0, -6:-1].softmax(-1)
    for token, expected in zip(answer.tokens, logits, strict=True):
        assert token.probability == pytest.approx(float(expected[token.number]), abs=1e-6)
        assert token.alternatives[0][1] == pytest.approx(float(expected.max()), abs=1e-6)


def test_words_begin_with_a_space_and_special_tokens_are_none() -> None:
    class Tokenizer:
        all_special_ids = (9,)

    pieces = [("A", 1), (" cat", 2), ("'s", 3), (" ", 4), ("", 5), ("é", 6), (" nap", 7), ("</s>", 9)]
    tokens = [Token(text, number, 0.5, ()) for text, number in pieces]
    words = words_of(tokens, Tokenizer())
    assert [(word.text, word.steps) for word in words] == [("A", (0,)), ("cat's", (1, 2)), ("é", (4, 5)), ("nap", (6,))]
    assert words[1].probability == 0.25
    assert find_word(words, -1) is find_word(words, "nap") is find_word(words, words[3])
    with pytest.raises(QueryError, match=r"word 'cats': expected one of .*did you mean \"cat's\""):
        find_word(words, "cats")
    with pytest.raises(QueryError, match="is written 2 times; expected one of the words"):
        find_word([words[0], words[0]], "A")


# Maps.


def test_a_map_has_the_shares_of_the_picture_or_of_everything(answer: Answer) -> None:
    weights = answer.weights("cat", 1)
    index = answer.grids[0].tokens.index
    picture, everything = answer.attention("cat", 1, 2), answer.attention("cat", 1, 2, of="everything")
    assert picture.shape == (4, 4) and float(picture.values.sum()) == pytest.approx(1, abs=1e-6)
    close(everything.values.flatten(), weights[2, index])
    assert float(answer.shares("cat")[1, 2]) == pytest.approx(float(everything.values.sum()), abs=1e-6)
    close(answer.attention("cat", 1, of="everything").values.flatten(), weights[:, index].mean(0))
    assert "layer 1, head 2: shares of what lies on the picture; " in picture.description


def test_the_head_that_reads_most_is_the_default(answer: Answer) -> None:
    best = answer.ranking[0]
    close(answer.attention(3).values, answer.attention(3, best.layer, best.head).values)
    assert f"layer {best.layer}, head {best.head}, which reads most" in answer.attention(3).description


def test_heads_are_ranked_by_what_their_place_tells_of_the_word() -> None:
    even, sink = torch.full((4,), 0.25), torch.tensor([1.0, 0, 0, 0])
    rows = [torch.stack([0.9 * even, 0.9 * sink, 0.5 * torch.eye(4)[word]])[None] for word in range(4)]
    ranking = rank_heads(rows)
    assert [(each.layer, each.head) for each in ranking] == [(0, 2), (0, 0), (0, 1)]
    assert ranking[0].bits == pytest.approx(1) and ranking[0].share == pytest.approx(0.5)
    assert [each.bits for each in ranking[1:]] == pytest.approx([0, 0], abs=1e-9)
    # Of one word, against an even map.
    assert rank_heads(rows[:1])[0].head == 1


def test_relative_attention_is_divided_by_that_of_another_question(made: Any, answer: Answer) -> None:
    model, ask = answer.prompt.model, vitviz.ask
    general = ask(PICTURE, "<image> describe the picture", model, max_new_tokens=2)
    # The question has another length.
    index = general.grids[0].tokens.index
    expected = answer.weights("cat", 1)[2, answer.grids[0].tokens.index] / general.layers[1].weights(0)[2, index]
    found = answer.attention("cat", 1, 2, relative_to=general)
    close(found.values.flatten(), expected)
    assert "times that of '<image> describe the picture'" in found.description
    other = ask(PICTURE.resize((64, 64)), made[2], model, max_new_tokens=2)
    with pytest.raises(MethodError, match="an answer about other pictures"):
        answer.attention("cat", relative_to=other)


@pytest.mark.parametrize("name", ["layer", "head", "picture"])
def test_what_there_is_not_is_refused(answer: Answer, name: str) -> None:
    with pytest.raises(QueryError, match=f"{name} 9: .* {name}s 0 to"):
        answer.attention(0, **{"layer": 0, name: 9})
    with pytest.raises(MethodError, match="of which layer"):
        answer.attention(0, head=1)


# Second passes.


def whole_pass(module: Any, answer: Answer, step: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Eager matrices of all layers of one pass over the whole text, ``"head query key"``, and the logits of a step."""
    inputs = answer.prompt.inputs()
    ids = [token.number for token in answer.tokens[:step]]
    ids = torch.cat([inputs.pop("input_ids"), torch.tensor([ids], dtype=torch.long)], 1)
    inputs.pop("attention_mask")
    module.set_attn_implementation("eager")
    try:
        output = module(input_ids=ids, **inputs, output_attentions=True)
    finally:
        module.set_attn_implementation("sdpa")
    return list(output.attentions), output.logits[0, -1]


@pytest.mark.parametrize("against", [None, "dog"])
def test_relevance_is_that_of_whole_matrices(made: Any, answer: Answer, against: str | None) -> None:
    matrices, logits = whole_pass(made[0], answer, 1)
    score = logits[answer.tokens[1].number]
    if against:
        score = score - logits[answer.tokens[4].number]
    gradients = torch.autograd.grad(score, matrices)
    total = torch.eye(matrices[0].shape[-1])
    for matrix, gradient in zip(matrices, gradients, strict=True):
        total = total + (matrix * gradient)[0].clamp(min=0).mean(0).detach() @ total
    found = answer.relevance("cat", against=against)
    close(found.values.flatten(), total[-1, answer.grids[0].tokens.index])
    assert found.values.max() > 1e-4


def test_rollout_is_that_of_whole_matrices(made: Any, answer: Answer) -> None:
    matrices, _ = whole_pass(made[0], answer, 3)
    total = torch.eye(matrices[0].shape[-1])
    for matrix in matrices:
        total = (matrix[0].mean(0).detach() + torch.eye(len(total))) / 2 @ total
    close(answer.rollout("the").values.flatten(), total[-1, answer.grids[0].tokens.index])


def test_of_a_decoder_with_an_encoder_flows_what_it_reads_there() -> None:
    module, processor, question = make("vision_encoder_decoder")
    answer = vitviz.ask(PICTURE, question, vitviz.load(module, processor=processor), max_new_tokens=1)
    module.set_attn_implementation("eager")
    pixels, start = answer.prompt.inputs()["pixel_values"], torch.tensor([[2]])
    output = module(pixel_values=pixels, decoder_input_ids=start, output_attentions=True)
    matrices = [*output.cross_attentions, *output.decoder_attentions]
    gradients = torch.autograd.grad(output.logits[0, -1, answer.tokens[0].number], matrices)
    module.set_attn_implementation("sdpa")
    pairs = zip(matrices, gradients, strict=True)
    first, second, below, above = ((each * slope)[0, :, 0].clamp(min=0).mean(0).detach() for each, slope in pairs)
    # In each layer, the one token reads itself, then the picture.
    expected = second + (1 + above) * first
    close(answer.relevance(0).values.flatten(), expected[answer.grids[0].tokens.index])
    assert below >= 0


def test_a_word_without_patches_has_the_probability_of_the_painted_picture(made: Any, answer: Answer) -> None:
    cells = [(0, 1), (3, 3)]
    painted = np.asarray(PICTURE).copy()
    left, top, right, bottom = answer.grids[0].box
    for row, column in cells:
        y, x = (round(top + (bottom - top) * row / 4), round(left + (right - left) * column / 4))
        y2, x2 = (round(top + (bottom - top) * (row + 1) / 4), round(left + (right - left) * (column + 1) / 4))
        painted[y:y2, x:x2] = np.asarray(PICTURE).mean((0, 1)).round()
    other = vitviz.ask(Image.fromarray(painted), made[2], answer.prompt.model, text=TEXT)
    hidden = answer.hiding("cat", cells)
    assert hidden == pytest.approx(other.words[1].probability, abs=1e-7) and hidden != answer.words[1].probability
    with pytest.raises(QueryError, match=r"patch \(4, 0\): this picture has \(0, 0\) to \(3, 3\)"):
        answer.hiding("cat", [(4, 0)])


def test_a_second_pass_that_computes_other_numbers_is_refused(answer: Answer) -> None:
    words = tuple(replace(word, probability=word.probability + 2e-4) for word in answer.words)
    changed = replace(answer, words=words)
    for ask in (changed.rollout, changed.relevance, lambda word: changed.hiding(word, [(0, 0)])):
        with pytest.raises(MethodError, match=r"'cat' was written with probability .*, and has .* in a second pass"):
            ask("cat")


# Pictures and models.


def test_each_of_several_pictures_has_its_own_tokens(made: Any) -> None:
    module, processor, question = made
    other = PICTURE.transpose(Image.Transpose.ROTATE_90)
    model = vitviz.load(module, processor=processor)
    answer = vitviz.ask([PICTURE, other], f"<image> {question}", model, max_new_tokens=2)
    first, second = (set(grid.tokens.index.tolist()) for grid in answer.grids)
    assert len(first) == len(second) == 16 and not first & second
    assert answer.attention(0, picture=1).image.size == (90, 130)
    assert float(answer.shares(0).max()) <= 1


@pytest.mark.parametrize("name", ["llava", "vision_encoder_decoder"])
def test_attention_that_is_written_out_is_that_of_the_kernel(name: str) -> None:
    answers = []
    for kernel in ("eager", "sdpa"):
        module, processor, question = make(name)
        module.set_attn_implementation(kernel)
        model = vitviz.load(module, processor=processor)
        answers.append(vitviz.ask(PICTURE, question, model, max_new_tokens=3))
        if kernel == "eager":
            with pytest.raises(MethodError, match="attn_implementation='sdpa'"):
                answers[0].rollout(0)
    # A decoder that begins with one token attends to that alone.
    written, fused = answers
    assert written.kinds == fused.kinds and torch.equal(written.grids[0].tokens.index, fused.grids[0].tokens.index)
    for step in range(3):
        for first, second in zip(written.layers, fused.layers, strict=True):
            close(first.weights(step), second.weights(step))


def test_a_model_that_writes_is_one_with_a_processor(made: Any) -> None:
    module, processor, _ = made
    with pytest.raises(ImageError, match=r"while it writes by vitviz\.load\(module, processor=processor\)"):
        vitviz.load(module)
    with pytest.raises(ConfigError, match="of a model that is analysed"):
        vitviz.load(module, processor=processor, labels=["cat"])
    with pytest.raises(ConfigError, match="generative module in memory"):
        vitviz.load("vitviz-photos", processor=processor)
    with pytest.raises(ConfigError, match="expected a LanguageModel, such as"):
        vitviz.ask(PICTURE, "what", vitviz.load())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="which has generate"):
        vitviz.load(torch.nn.Linear(2, 2).eval(), processor=processor)
