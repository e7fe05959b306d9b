"""What an answer says of its words: maps, ranking, second passes, several pictures, words and refusals."""

from __future__ import annotations

import base64
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

import vitviz
from tests.language.families import make
from tests.reference_packages import transformers as hf
from tests.support.comparison import closeness
from vitviz import Answer, ConfigError, ImageError, MethodError, QueryError
from vitviz.errors.number_text import percent
from vitviz.language import answers
from vitviz.language.generation import generate
from vitviz.language.notebook import one_scale
from vitviz.language.passes import KeptCalls
from vitviz.language.reading import rank_heads
from vitviz.language.record import Recorder
from vitviz.language.text import Token, find_word, tokens_of, words_of
from vitviz.models.watched.calls import AttentionCall

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
    added = {number: AddedToken("", special=number == 8) for number in (7, 8)}
    tokenizer = SimpleNamespace(all_special_ids=(9,), added_tokens_decoder=added)
    texts = ("A", " cat", "'s", " ", "", "é", " nap", "</s>", "<end_of_turn>")
    numbers = (1, 2, 3, 4, 5, 6, 7, 9, 8)
    tokens = [Token(text, (step,), 0.5, numbers[step], ()) for step, text in enumerate(texts)]
    words = words_of(tokens, tokenizer)
    assert [(word.text, word.steps) for word in words] == [("A", (0,)), ("cat's", (1, 2)), ("é", (4, 5)), ("nap", (6,))]
    assert words[1].probability == 0.25
    assert find_word(words, -1) is find_word(words, "nap") is find_word(words, words[3])
    with pytest.raises(QueryError, match=r"word 'cats': expected a place, or one of .*did you mean \"cat's\""):
        find_word(words, "cats")
    with pytest.raises(QueryError, match="is written 2 times; expected one of the words"):
        find_word([words[0], words[0]], "A")


def test_of_scripts_without_spaces_each_token_is_a_word() -> None:
    pieces = ["これは", "", "", "猫", "です", "。", "「", "AI", "」", "ตัว", "ี", " two", " c", "ats"]
    tokens = [Token(text, (number,), 0.5, number, ()) for number, text in enumerate(pieces)]
    words = words_of(tokens, None)
    assert [word.text for word in words] == ["これは", "猫", "です。", "「AI」", "ตัวี", "two", "cats"]
    # Bytes of a letter belong to it.
    assert words[1].steps == (1, 2, 3)


def test_what_later_tokens_change_counts_for_them() -> None:
    # As of BERT with clean_up_tokenization_spaces.
    texts = ("the", "cat", "'", "s", "ears")
    tokenizer = SimpleNamespace(decode=lambda numbers: " ".join(map(texts.__getitem__, numbers)).replace(" ' s", "'s"))
    tokens = tokens_of(range(5), torch.zeros(5, 5), tokenizer)
    assert "".join(token.text for token in tokens) == "the cat's ears"
    assert [word.steps for word in words_of(tokens, tokenizer)] == [(0,), (1, 2, 3), (4,)]


def test_one_token_stands_for_itself(answer: Answer) -> None:
    of_several = replace(answer, words=(replace(answer.words[1], steps=(1, 2)),))
    close(of_several.attention(answer.tokens[1], 1, 2).values, answer.attention("cat", 1, 2).values)
    assert "while it wrote 'cat'" in answer.attention(answer.tokens[1]).description
    with pytest.raises(QueryError, match="a Token: expected a place, or one of 'a', 'cat'"):
        answer.attention(replace(answer.tokens[1], steps=(2,)))
    # Of another answer, whose text stands elsewhere.
    with pytest.raises(QueryError, match="a Word: expected a place, or one of 'a', 'cat'"):
        answer.attention(replace(answer.words[1], text="dog"))


# Maps.


def test_a_map_has_the_shares_of_the_picture_or_of_everything(answer: Answer) -> None:
    weights = answer.weights("cat", 1)
    index = answer.grids[0].index
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


def test_heads_are_ranked_by_what_their_place_tells_of_the_word_that_is_written_and_not_of_the_last_one() -> None:
    even, sink, steps = torch.full((5,), 0.2), torch.tensor([1.0, 0, 0, 0, 0]), range(4)
    reads, follows = torch.eye(5)[1:], torch.eye(5)[:4]
    rows = torch.stack([torch.stack([0.9 * even, 0.9 * sink, follows[each], 0.9 * reads[each]]) for each in steps])
    ranking = rank_heads(2, [rows[:, :2], rows[:, 2:]].__getitem__)
    assert [(each.layer, each.head) for each in ranking[:2]] == [(1, 1), (1, 0)]
    assert [each.bits for each in ranking] == pytest.approx([1.8, 2, 0, 0], abs=1e-6)
    assert [each.share for each in ranking] == pytest.approx([0.9, 1, 0.9, 0.9])
    assert ranking[0].ahead > 0.6 > 0.4 > ranking[1].ahead and ranking[2].ahead == 0.5


def test_of_one_token_the_caption_says_that_no_head_can_be_chosen(answer: Answer) -> None:
    single = replace(answer, words=answer.words[:1], tokens=answer.tokens[:1])
    best = single.shares(0).argmax().item()
    found = single.attention(0).description
    assert f"layer {best // 4}, head {best % 4}, of 12 heads the one with most attention on the picture" in found
    assert "one token cannot tell whether it always looks there" in found


def test_relative_attention_is_divided_by_that_of_another_question(
    made: Any, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ask = answer.prompt.model, vitviz.ask
    general = ask(PICTURE, "<image> describe the picture", model, max_new_tokens=2)
    # The question has another length.
    index = general.grids[0].index
    general = replace(general, prompt=replace(general.prompt, question="Describe the picture."))
    read = general.layers[1].weights(0)[2]
    attention = answer.weights("cat", 1)[2, answer.grids[0].index]
    found = answer.attention("cat", 1, 2, relative_to=general)
    close(found.values.flatten(), attention / read[index])
    assert "times that of 'Describe the picture.'" in found.description
    # The floor is in parts of an even share of all that is read.
    monkeypatch.setattr(answers, "LEAST_SHARE", 1.0)
    assert read[index].min() < 1 / len(read) < read[index].max()
    floored = answer.attention("cat", 1, 2, relative_to=general).values.flatten()
    close(floored, attention / read[index].clamp(min=1 / len(read)))
    other = ask(PICTURE.resize((64, 64)), made[2], model, max_new_tokens=2)
    with pytest.raises(MethodError, match="an answer about other pictures"):
        answer.attention("cat", relative_to=other)
    with pytest.raises(MethodError, match="of='everything' is for maps that are not divided"):
        answer.attention("cat", of="everything", relative_to=general)
    with pytest.raises(ConfigError, match="relative_to: 'x' found; expected an Answer"):
        answer.attention("cat", relative_to="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["layer", "head", "picture"])
def test_what_there_is_not_is_refused(answer: Answer, name: str) -> None:
    legal = "it was shown picture 0 alone" if name == "picture" else f".* {name}s 0 to"
    with pytest.raises(QueryError, match=f"{name} 9: {legal}"):
        answer.attention(0, **{"layer": 0, name: 9})
    with pytest.raises(MethodError, match="of which layer"):
        answer.attention(0, head=1)


def test_a_notebook_shows_the_words_and_the_map_of_the_one_under_the_pointer(answer: Answer) -> None:
    html = answer._repr_html_()
    images = [base64.b64decode(each) for each in re.findall(r'src="data:image/jpeg;base64,([^"]+)"', html)]
    assert [each.partition("<")[0] for each in re.findall(r"<span [^>]*>([^<]*)", html)] == TEXT.split()
    assert {Image.open(BytesIO(each)).size for each in images} == {(420, 291)} and len(set(images)) == 6
    assert f'title="{percent(answer.words[1].probability)} probable. Attention while it wrote &#x27;cat&#x27;' in html
    # Another word has the same colours for the same values.
    maps = [answer.attention(word) for word in answer.words]
    style = one_scale(maps)
    assert len({each.scale(style) for each in maps}) == 1 < len({each.scale() for each in maps})


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
    close(found.values.flatten(), total[-1, answer.grids[0].index])
    assert found.values.max() > 1e-4


class Letters:
    """A tokenizer of words of the small model that cuts the space off each as a part of its first letter."""

    texts = ("at", "a", " c", "ow", " d", "og", "cow", "dog", "cat")

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        numbers = []
        while text:
            known = ((20 + number, each) for number, each in enumerate(self.texts) if text.startswith(each))
            number, found = next(known, (0, text))
            numbers.append(number)
            text = text[len(found) :]
        return numbers

    def decode(self, numbers: list[int]) -> str:
        return "".join(dict(enumerate(self.texts, 20)).get(number, "…") for number in numbers)


def test_another_word_is_compared_in_the_place_of_the_word_at_the_first_token_that_differs(made: Any) -> None:
    module, processor, question = made
    model = vitviz.load(module, processor=processor, tokenizer=Letters())
    answer = vitviz.ask(PICTURE, question, model, text="a cat")
    assert [word.steps for word in answer.words] == [(0,), (1, 2)]
    for against, step, other in (("cow", 2, 23), ("dog", 1, 24)):
        matrices, logits = whole_pass(module, answer, step)
        gradients = torch.autograd.grad(logits[answer.tokens[step].number] - logits[other], matrices)
        total = torch.eye(matrices[0].shape[-1])
        for matrix, gradient in zip(matrices, gradients, strict=True):
            total = total + (matrix * gradient)[0].clamp(min=0).mean(0).detach() @ total
        found = answer.relevance("cat", against=against)
        close(found.values.flatten(), total[-1, answer.grids[0].index])
        less = f"(the logit of {answer.tokens[step].text!r} less that of {Letters.texts[other - 20]!r})"
        assert f"Relevance for 'cat' and not {against!r} {less}" in found.description
    with pytest.raises(MethodError, match="against 'cat' in the place of 'cat': no token differs"):
        answer.relevance("cat", against="cat")
    for wrong in (2, ""):
        with pytest.raises(MethodError, match=f"against {wrong!r}: expected a text that is not empty"):
            answer.relevance("cat", against=wrong)  # type: ignore[arg-type]


def test_rollout_is_that_of_whole_matrices(made: Any, answer: Answer) -> None:
    matrices, _ = whole_pass(made[0], answer, 3)
    total = torch.eye(matrices[0].shape[-1])
    for matrix in matrices:
        total = (matrix[0].mean(0).detach() + torch.eye(len(total))) / 2 @ total
    close(answer.rollout("the").values.flatten(), total[-1, answer.grids[0].index])


def test_a_generate_of_its_own_around_that_of_transformers_passes_gradients_on(answer: Answer) -> None:
    module, processor, question = make("llava")
    generate = {"generate": lambda self, **options: hf.LlavaForConditionalGeneration.generate(self, **options)}
    module.__class__ = type("Own", (type(module),), generate)
    found = vitviz.ask(PICTURE, question, vitviz.load(module, processor=processor), text=TEXT)
    close(found.relevance("cat").values, answer.relevance("cat").values)


@pytest.mark.parametrize("around", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_inference_mode_and_autocast_around_a_call_change_nothing(answer: Answer, around: Any) -> None:
    def found(answer: Answer) -> list[Any]:
        return [answer.weights("cat", 1), answer.rollout("cat").values, answer.relevance("cat").values]

    with around():
        there, hidden = found(answer), replace(answer).hiding("cat", [(0, 0)])
    assert all(map(torch.equal, there, found(answer))) and hidden == replace(answer).hiding("cat", [(0, 0)])


def test_what_flows_through_layers_that_read_for_one_token_alone_is_refused() -> None:
    pytest.importorskip("transformers", "5.24", "these layers read for all tokens")
    module, processor, question = make("gemma4")
    answer = vitviz.ask(PICTURE, question, vitviz.load(module, processor=processor), max_new_tokens=2)
    with pytest.raises(MethodError, match="has some that read for the last one alone, by keys of other layers"):
        answer.rollout(0)


def test_a_second_pass_keeps_no_call_of_an_encoder_whatever_module_attends() -> None:
    tokens = torch.zeros(1, 3, 4)
    with torch.no_grad(), KeptCalls(2, False) as kept:
        torch.nn.MultiheadAttention(4, 1, batch_first=True)(tokens, tokens, tokens)
        for value in (1, 2):
            torch.nn.functional.scaled_dot_product_attention(tokens, tokens, tokens + value)
    [(given, _)] = kept.calls
    assert torch.equal(given["value"], tokens + 2)


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
    close(answer.relevance(0).values.flatten(), expected[answer.grids[0].index])
    assert below >= 0


def test_a_word_without_patches_has_the_probability_of_the_painted_picture(made: Any, answer: Answer) -> None:
    cells = [(0, 1), (3, 3)]
    painted = np.asarray(PICTURE).copy()
    left, top, right, bottom = answer.grids[0].geometry.box
    for row, column in cells:
        y, x = (round(top + (bottom - top) * row / 4), round(left + (right - left) * column / 4))
        y2, x2 = (round(top + (bottom - top) * (row + 1) / 4), round(left + (right - left) * (column + 1) / 4))
        painted[y:y2, x:x2] = np.asarray(PICTURE).mean((0, 1)).round()
    other = vitviz.ask(Image.fromarray(painted), made[2], answer.prompt.model, text=TEXT)
    hidden = answer.hiding("cat", cells)
    assert hidden == pytest.approx(other.words[1].probability, abs=1e-7) and hidden != answer.words[1].probability
    with pytest.raises(QueryError, match=r"patch \(4, 0\): this picture has \(0, 0\) to \(3, 3\)"):
        answer.hiding("cat", [(4, 0)])


def test_a_map_of_hiding_has_the_bits_that_each_square_takes(made: Any, answer: Answer) -> None:
    found = answer.hiding("cat", squares=2)
    assert found.shape == (1, 2) and found.token_map.signed
    painted = np.asarray(PICTURE).copy()
    painted[:, 65:] = painted.mean((0, 1)).round()
    hidden = vitviz.ask(Image.fromarray(painted), made[2], answer.prompt.model, text=TEXT).words[1].probability
    assert float(found.values[0, 1]) == pytest.approx(np.log2(answer.words[1].probability / hidden), abs=1e-5)
    assert abs(float(found.values[0, 1])) > 1e-4
    with pytest.raises(MethodError, match="squares = 0: expected"):
        answer.hiding("cat", squares=0)


def test_what_is_hidden_is_written_again_up_to_the_word_and_serves_the_words_before(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh, lengths = replace(answer), list[int]()

    def counted(prompt: Any, inputs: Any, limit: int, ids: list[int]) -> Any:
        lengths.append(len(ids))
        return generate(prompt, inputs, limit, ids)

    monkeypatch.setattr(answers, "generate", counted)
    later, earlier = fresh.hiding("is", squares=2), fresh.hiding("cat", squares=2)
    # Of the whole picture and of two squares.
    assert lengths == [3] * 3
    assert fresh.hiding(3, squares=2).shape == earlier.shape and lengths == [3] * 3 + [4] * 3
    close(later.values, answer.hiding("is", squares=2).values)
    close(earlier.values, answer.hiding("cat", squares=2).values)


def test_a_second_pass_that_computes_other_numbers_is_refused(answer: Answer) -> None:
    # Of any probability, a part of it counts.
    words = tuple(replace(word, probability=word.probability * 1.0002) for word in answer.words)
    changed = replace(answer, words=words)
    for ask in (changed.rollout, changed.relevance, lambda word: changed.hiding(word, [(0, 0)])):
        with pytest.raises(MethodError, match=r"'cat' was written with log-probability .*, and has .* in a second"):
            ask("cat")


def test_a_second_pass_in_half_precision_may_differ_by_its_rounding() -> None:
    module, processor, question = make("llava")
    answer = vitviz.ask(PICTURE, question, vitviz.load(module.bfloat16(), processor=processor), text="a cat")
    factors = {1.01: True, 1.2: False}
    for factor, is_same in factors.items():
        changed = replace(answer, words=(replace(answer.words[1], probability=answer.words[1].probability * factor),))
        with nullcontext() if is_same else pytest.raises(MethodError, match="difference of at most"):
            changed.rollout(0)


# Pictures and models.


def test_each_of_several_pictures_has_its_own_tokens(made: Any) -> None:
    module, processor, question = made
    other = PICTURE.transpose(Image.Transpose.ROTATE_90)
    model = vitviz.load(module, processor=processor)
    answer = vitviz.ask([PICTURE, other], f"<image> {question}", model, max_new_tokens=2)
    first, second = (set(grid.index.tolist()) for grid in answer.grids)
    assert len(first) == len(second) == 16 and not first & second
    assert answer.attention(0, picture=1).image.size == (90, 130)
    assert answer.attention(0, picture=-1).description.endswith("on picture 1")
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
    kinds = [[layer.is_cross for layer in each.recorder.layers] for each in answers]
    assert kinds[0] == kinds[1] and torch.equal(written.grids[0].index, fused.grids[0].index)
    for step in range(3):
        for first, second in zip(written.layers, fused.layers, strict=True):
            close(first.weights(step), second.weights(step))


@pytest.mark.parametrize(("step", "reason"), [(1, "expected the decoder's, in each"), (2, "its cache changes keys")])
def test_a_decoder_whose_keys_change_is_refused(step: int, reason: str) -> None:
    recorder, keys = Recorder(), torch.randn(1, 1, 5, 4)
    with pytest.raises(ConfigError, match=reason):
        for number in range(3):
            keys[:, :, 2] += number == step
            given = keys[:, :, : 3 + number].clone()
            call = AttentionCall(given[:, :, -1:], given, given, 1.0, None, torch.zeros(0))
            recorder.add(replace(call, output=call.context()))
            recorder.end_step()


ENDING = {"max_time": 1e-9, "exponential_decay_length_penalty": (1, 1.5), "eos_token_id": 3}


@pytest.mark.parametrize("setting", [{"cache_implementation": "static"}, {"prompt_lookup_num_tokens": 2}, ENDING])
def test_how_it_would_write_makes_no_difference_to_a_given_text(answer: Answer, setting: dict[str, Any]) -> None:
    module, processor, question = make("llava")
    module.generation_config.update(**setting)
    found = vitviz.ask(PICTURE, question, vitviz.load(module, processor=processor), text=TEXT)
    close(found.weights("cat", 1), answer.weights("cat", 1))


def test_padding_before_the_prompt_makes_no_difference(answer: Answer) -> None:
    module, processor, question = make("llava")
    processor.tokenizer.padding_side = "left"
    padded = partial(processor, padding="max_length", max_length=40)
    model = vitviz.load(module, processor=padded, tokenizer=processor.tokenizer)
    found = vitviz.ask(PICTURE, question, model, text=TEXT)
    close(found.rollout("cat").values, answer.rollout("cat").values)
    close(found.relevance("cat").values, answer.relevance("cat").values)


def test_a_class_with_a_generate_of_its_own_writes_a_given_text() -> None:
    module, processor, question = make("blip")
    answer = vitviz.ask(PICTURE, question, vitviz.load(module, processor=processor), text="a cat </s>")
    assert answer.text == "a cat" and answer.tokens[-1].text == " </s>" and answer.hiding("cat", [(0, 0)]) > 0
    with pytest.raises(MethodError, match="need attention by torch's scaled_dot_product_attention"):
        answer.rollout("cat")
    with pytest.raises(MethodError, match="text: the network ends before all of it is written"):
        vitviz.ask(PICTURE, question, answer.prompt.model, text="a </s> cat")


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
    for wrong, found in (
        (processor.tokenizer, "a TokenizersBackend"),
        (processor.image_processor, "a CLIPImageProcessor"),
        ("my_model", "'my_model'"),
    ):
        with pytest.raises(ConfigError, match=rf"processor: {found} .* AutoProcessor.from_pretrained\('my_model'\)"):
            vitviz.load(module, processor=wrong)
    with pytest.raises(ConfigError, match="the model takes no pictures"):
        vitviz.load(hf.LlamaForCausalLM(module.config.text_config).eval(), processor=processor)


def test_a_template_that_begins_with_the_first_token_has_it_once_as_in_transformers() -> None:
    module, processor, _ = make("llava")
    processor.chat_template = "{{ bos_token }} <image> {{ messages[0].content[1].text }}"
    first = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    processor.tokenizer.backend_tokenizer.post_processor = first
    messages = [{"role": "user", "content": [{"type": "image", "image": PICTURE}, {"type": "text", "text": "what"}]}]
    model = vitviz.load(module, processor=processor)
    answer = vitviz.ask(PICTURE, messages, model, max_new_tokens=1)
    with pytest.raises(MethodError, match="the pictures in its messages are not those of image"):
        vitviz.ask(PICTURE.resize((64, 64)), messages, model)
    [expected] = processor.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    assert answer.prompt.inputs()["input_ids"][0].tolist() == expected and expected.count(2) == 1


def test_guidance_numbers_that_are_not_finite_and_questions_to_captioners_are_refused() -> None:
    module, processor, question = make("llava")
    model = vitviz.load(module, processor=processor)
    module.generation_config.guidance_scale = 1.5
    with pytest.raises(ConfigError, match="seen in 6 places of its 3 layers"):
        vitviz.ask(PICTURE, question, model, max_new_tokens=2)
    module.generation_config.guidance_scale = None
    module.lm_head.weight.data[3] = torch.nan
    with pytest.raises(ConfigError, match="its logits are not finite"):
        vitviz.ask(PICTURE, question, model, max_new_tokens=2)
    captioner, images, _ = make("vision_encoder_decoder")
    model = vitviz.load(captioner, processor=hf.TrOCRProcessor(images, processor.tokenizer))
    with pytest.raises(ConfigError, match="it writes 2 texts, each about one picture"):
        vitviz.ask([PICTURE, PICTURE], "", model)
    with pytest.raises(MethodError, match="question 'what': the processor takes it for an answer; expected ''"):
        vitviz.ask(PICTURE, "what", model)


def test_no_picture_and_no_text_are_refused(made: Any, answer: Answer) -> None:
    model = answer.prompt.model
    with pytest.raises(MethodError, match="image: an empty list found; expected a picture"):
        vitviz.ask([], made[2], model)
    with pytest.raises(MethodError, match="text '': expected a text that is not empty"):
        vitviz.ask(PICTURE, made[2], model, text="")
    for question in ("", " ", []):
        with pytest.raises(MethodError, match=r"question .*: expected a text that is not empty"):
            vitviz.ask(PICTURE, question, model)


def test_words_that_the_model_reads_as_others_are_refused(answer: Answer) -> None:
    model, read = answer.prompt.model, "LlavaForConditionalGeneration reads it as 'a <unk>'"
    for ask in (
        lambda: vitviz.ask(PICTURE, "a zebra", model),
        lambda: vitviz.ask(PICTURE, "a", model, text="a zebra"),
        lambda: answer.relevance("cat", against="a zebra"),
    ):
        with pytest.raises(MethodError, match=f"'a zebra': {read}; expected words of its vocabulary"):
            ask()
    assert vitviz.ask(PICTURE, "a", model, text="a <unk>").tokens[1].text == " <unk>"
