"""What was written: tokens with their probabilities, and the words that they make."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import torch

from vitviz.attention.layout import index_from_end
from vitviz.errors.arguments import integer_or_none
from vitviz.errors.kinds import QueryError
from vitviz.errors.messages import describe, did_you_mean, listing

ALTERNATIVES = 5
MARKS = ".,;:!?\"'"
# Beginnings of the names of letters that are written without spaces between words.
SPACELESS = ("CJK", "IDEOGRAPHIC", "FULLWIDTH", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


@dataclass(frozen=True)
class Word:
    """One word of an answer.

    Args:
        text: of its tokens.
        steps: places of its tokens among those of the answer.
        probability: the product of its tokens', which the network gave them before any rules of writing.
    """

    text: str
    steps: tuple[int, ...]
    probability: float


@dataclass(frozen=True)
class Token(Word):
    """One token of an answer: what it adds to the text, and what else might stand there.

    Args:
        number: of the token in the network's vocabulary.
        alternatives: the likeliest tokens in its place, with their probabilities.
    """

    number: int
    alternatives: tuple[tuple[str, float], ...]


def tokens_of(ids: Sequence[int], logits: torch.Tensor, tokenizer: Any) -> tuple[Token, ...]:
    """The tokens that were written, by their numbers and by the logits of their steps, ``"step token"``."""
    probabilities = logits.double().softmax(-1)
    likely, others = (each.tolist() for each in probabilities.topk(min(ALTERNATIVES, probabilities.shape[1])))
    tokens, whole, start = list[Token](), text_of(ids, tokenizer), 0
    for step, number in enumerate(ids):
        # What later tokens change counts for them: bytes of a letter, and spaces before punctuation.
        stop = max(start, len(commonprefix([text_of(ids[: step + 1], tokenizer), whole])))  # noqa: RUF071
        alternatives = tuple(zip((text_of([other], tokenizer) for other in others[step]), likely[step], strict=True))
        tokens.append(Token(whole[start:stop], (step,), float(probabilities[step, number]), number, alternatives))
        start = stop
    return tuple(tokens)


def words_of(tokens: Sequence[Token], tokenizer: Any) -> tuple[Word, ...]:
    """The words that tokens make; special tokens are none.

    Each begins with a space, or after one. Of scripts that are written without spaces, each token is a word.
    """
    special = special_ids(tokenizer)
    groups, before, pending = list[list[int]](), " ", list[int]()
    for step, token in enumerate(tokens):
        if token.number in special or token.text.isspace():
            before, pending = " ", []
        elif not token.text:
            # Bytes of a letter belong to the word of that letter.
            pending.append(step)
        else:
            if _is_between_words(before[-1], token.text[0]):
                groups.append([])
            groups[-1] += [*pending, step]
            before, pending = token.text, []
    return tuple(
        Word(
            "".join(tokens[step].text for step in group).strip(),
            tuple(group),
            math.prod(tokens[step].probability for step in group),
        )
        for group in groups
    )


def special_ids(tokenizer: Any) -> set[int]:
    """Numbers of the tokens that are no text, such as the end of a turn; those that a model adds have no name."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {*getattr(tokenizer, "all_special_ids", ()), *(number for number in added if added[number].special)}


def _is_between_words(before: str, after: str) -> bool:
    """Whether a word ends between the last character of a token and the first one of the next."""
    if before.isspace() or after.isspace():
        return True
    # Punctuation stays with the word before it, and what opens with the word after it.
    is_opened, opens = (unicodedata.category(each) in ("Ps", "Pi") for each in (before, after))
    is_spaceless = any(unicodedata.name(each, "").startswith(SPACELESS) for each in (before, after))
    return is_spaceless and not is_opened and (opens or after.isalnum())


def find_word(words: Sequence[Word], word: Any) -> Word:
    """A word by its place or its text, or itself.

    Raises:
        QueryError: there is none, or there are several of this text.
    """
    if isinstance(word, Word) and word in words:
        return word
    if integer_or_none(word) is not None:
        return words[index_from_end("word", word, len(words), "this answer has")]
    texts = [each.text for each in words]
    found = [number for number, each in enumerate(texts) if isinstance(word, str) and word in (each, each.strip(MARKS))]
    if len(found) == 1:
        return words[found[0]]
    reason = (
        f"is written {len(found)} times; expected one of the words {found}"
        if found
        else f"expected a place, or one of {listing(texts, 20)}{did_you_mean(word, texts)}"
    )
    raise QueryError(f"word {describe(word)}: {reason}")


def text_of(numbers: Sequence[int], tokenizer: Any) -> str:
    """The text of some tokens."""
    return " ".join(f"#{each}" for each in numbers) if tokenizer is None else str(tokenizer.decode(list(numbers)))
