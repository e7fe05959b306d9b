"""An answer of a network that writes, with the attention of each of its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from PIL import Image

from vitviz.errors.arguments import integer_or_none, named_arguments
from vitviz.errors.arguments import word as one_of
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.errors.messages import describe
from vitviz.errors.number_text import percent
from vitviz.language.generation import generate
from vitviz.language.maps import PictureGrid
from vitviz.language.passes import flow
from vitviz.language.prompts import Prompt
from vitviz.language.reading import Reading, rank_heads
from vitviz.language.record import Layer
from vitviz.language.text import Token, Word, find_word
from vitviz.visualization.heatmaps import Heatmap

Whole = Literal["picture", "everything"]
WHOLES: tuple[Whole, ...] = ("picture", "everything")
# Methods of an answer that need a word alone.
WORD_MAPS = ("attention", "relevance", "rollout")
AnyWord = Word | int | str
# The most by which the probability of a word may differ in a second pass.
SAME_PROBABILITY = 1e-4


@dataclass(frozen=True, eq=False)
class Answer(AttributeAdvice):
    """What a network wrote about pictures, and what it attended to meanwhile.

    Args:
        prompt: pictures and question.
        tokens: that it wrote.
        words: that these make.
        layers: the attention of the layers that read the picture.
        grids: of each picture.
        kinds: for each of the decoder's calls of attention in a step, whether it reads an encoder's tokens.
        skipped: number of the calls before them in the first step.

    >>> answer = vitviz.ask("cat.jpg", "what is this", writer)
    >>> answer.attention(0).values.shape
    torch.Size([4, 4])
    """

    prompt: Prompt = field(repr=False)
    tokens: tuple[Token, ...] = field(repr=False)
    words: tuple[Word, ...] = field(repr=False)
    layers: tuple[Layer, ...] = field(repr=False)
    grids: tuple[PictureGrid, ...] = field(repr=False)
    kinds: tuple[bool, ...] = field(repr=False)
    skipped: int = field(repr=False)

    @property
    def text(self) -> str:
        """All that was written, special tokens included."""
        return "".join(token.text for token in self.tokens).strip()

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, {len(self.words)} words, {len(self.layers)} layers that read the picture)"

    @named_arguments(QueryError)
    def weights(self, word: AnyWord, layer: int) -> torch.Tensor:
        """The attention of one layer while a word was written, ``"head token"``, in the mean of the word's tokens.

        Args:
            word: its place, its text, or itself.
            layer: from 0, among those that read the picture; from the end if negative.

        Returns:
            Of all tokens that the layer reads; those before a sliding window have 0.

        Raises:
            QueryError: there is no such word or layer.
        """
        found, steps = self.layers[self._layer(layer)], find_word(self.words, word).steps
        rows = [torch.nn.functional.pad(found.weights(step), (found.offset(step), 0)) for step in steps]
        longest = max(row.shape[-1] for row in rows)
        # Later tokens did not exist yet.
        return torch.stack([torch.nn.functional.pad(row, (0, longest - row.shape[-1])) for row in rows]).mean(0)

    @named_arguments(QueryError)
    def shares(self, word: AnyWord) -> torch.Tensor:
        """The share of attention that lies on the pictures, of everything that is read: ``"layer head"``.

        Raises:
            QueryError: there is no such word.
        """
        return torch.stack([self._on_picture(word, number).sum(-1) for number in range(len(self.grids))]).sum(0)

    @cached_property
    def ranking(self) -> list[Reading]:
        """All heads by how much they read of the picture, the best one first, by :func:`rank_heads`."""
        numbers = range(len(self.grids))
        return rank_heads([torch.cat([self._on_picture(word, each) for each in numbers], -1) for word in self.words])

    @named_arguments(MethodError)
    def attention(
        self,
        word: AnyWord,
        layer: int | None = None,
        head: int | None = None,
        *,
        picture: int = 0,
        of: Whole = "picture",
        relative_to: Answer | None = None,
    ) -> Heatmap:
        """What of a picture the network attended to while it wrote a word.

        Most attention often lies on a few tokens that are read whatever is written, and most heads read no picture. So
        the default is the head that reads most, the first of :attr:`ranking`, and not the mean of all.

        Args:
            word: its place, its text, or itself. Of several tokens, their mean.
            layer: from 0, among those that read the picture; None for that of the best head.
            head: from 0; None for the mean of the layer's, or without a layer for the best one.
            picture: of several, from 0.
            of: ``"picture"`` for shares of what lies on this picture, which add up to 1; ``"everything"`` for shares of
                all that is read.
            relative_to: another answer about the same pictures, such as to "Write a general description of the image.":
                each patch is divided by its attention for the first token of that answer, so that what is read for any
                question is 1. Zhang et al. 2025, "MLLMs Know Where to Look: Training-free Perception of Small Visual
                Details with Multimodal LLMs".

        Raises:
            QueryError: there is no such word, layer, head or picture.
            MethodError: ``of`` is none of these, or the other answer is about other pictures.
        """
        found, whole = find_word(self.words, word), one_of("of", of, WHOLES)
        if layer is None:
            best = self.ranking[0]
            if head is not None:
                raise MethodError(f"head = {describe(head)}: of which layer? expected layer=…, too")
            layer, head = best.layer, best.head
            which = f"layer {layer}, head {head}, which reads most of the picture of {len(self.ranking)} heads"
        else:
            layer = self._layer(layer)
            which = f"layer {layer}, " + ("mean of all heads" if head is None else f"head {self._head(layer, head)}")
        heads = slice(None) if head is None else slice(head := self._head(layer, head), head + 1)
        row = self._on_picture(found, self._picture(picture))[layer, heads].mean(0)
        share = float(row.sum())
        grid, unit, quantity = self.grids[picture], "shares of all that it read", "share of the attention"
        cells = grid.cells(row)
        if relative_to is not None:
            if not relative_to._shows(self.grids):
                raise MethodError("relative_to: an answer about other pictures; expected the same ones")
            other = relative_to._on_picture(Word("", (0,), 1.0), picture)[layer, heads].mean(0)
            cells = cells / grid.cells(other).clamp(min=1e-30)
            unit, quantity = f"times that of {relative_to.prompt.text!r}", "relative attention"
        elif whole == "picture":
            cells, unit = cells / max(share, 1e-30), "shares of what lies on the picture"
        description = (
            f"Attention while it wrote {found.text!r}, {which}: {unit}; {percent(share)} of this attention lies on "
            f"{'the picture' if len(self.grids) == 1 else f'picture {picture}'}"
        )
        return grid.heatmap(cells, quantity, description)

    def _shows(self, grids: Sequence[PictureGrid]) -> bool:
        """Whether its pictures have these tokens."""
        boxes = [[grid.tokens.boxes for grid in each] for each in (self.grids, grids)]
        return len(boxes[0]) == len(boxes[1]) and all(map(torch.equal, *boxes))

    @named_arguments(MethodError)
    def rollout(self, word: AnyWord, *, picture: int = 0) -> Heatmap:
        """What of a picture flows to a word through the attention of all layers, by a second pass.

        Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", with the mean of the heads: :func:`flow`.

        Raises:
            QueryError: there is no such word or picture.
            MethodError: the word is not as probable again, or attention is not that of torch's kernel.
        """
        found = find_word(self.words, word)
        values = self._flow(found, {step: {} for step in found.steps}, False)
        return self._map(values, picture, "share of the rollout", f"Rollout from {found.text!r}, all layers")

    @named_arguments(MethodError)
    def relevance(self, word: AnyWord, *, against: str | None = None, picture: int = 0) -> Heatmap:
        """What of a picture raises a word, through the attention of all layers and its gradients, by a second pass.

        Chefer et al. 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
        Transformers": :func:`flow`. The score is the logit of the word's tokens.

        Args:
            word: its place, its text, or itself.
            against: another word in its place, whose logit is subtracted: what speaks for the one and not the other.
                Of words of several tokens, their first ones.
            picture: of several, from 0.

        Raises:
            QueryError: there is no such word or picture.
            MethodError: the word is not as probable again, or attention is not that of torch's kernel.
        """
        found = find_word(self.words, word)
        asked = {step: {self.tokens[step].number: 1.0} for step in found.steps}
        if against is not None:
            step = found.steps[0]
            asked = {step: {self.tokens[step].number: 1.0, self.prompt.model.ids(against)[0]: -1.0}}
        values = self._flow(found, asked, True)
        contrast = "" if against is None else f" and not {against!r}"
        return self._map(values, picture, "relevance", f"Relevance for {found.text!r}{contrast}, all layers")

    @named_arguments(MethodError)
    def hiding(self, word: AnyWord, patches: Sequence[tuple[int, int]], *, picture: int = 0) -> float:
        """The probability of a word where patches of a picture are painted in its mean colour, by a second pass.

        Zeiler & Fergus 2014, "Visualizing and Understanding Convolutional Networks". The words before it stay.

        Args:
            word: its place, its text, or itself; ``word.probability`` is that with the whole picture.
            patches: ``(row, column)`` of the cells of the picture's maps.
            picture: of several, from 0.

        Raises:
            QueryError: there is no such word, picture or patch.
            MethodError: the word is not as probable again with the whole picture.
        """
        found, grid = find_word(self.words, word), self.grids[self._picture(picture)]
        self._check(found, self._written(found, self.prompt.pictures))
        pictures = list(self.prompt.pictures)
        pictures[picture] = grid.painted(patches)
        return self._probability(found, self._written(found, pictures))

    def _written(self, word: Word, pictures: Sequence[Image.Image]) -> torch.Tensor:
        """The logits of the same text up to a word, with other pictures."""
        prompt, ids = self.prompt, [token.number for token in self.tokens[: word.steps[-1] + 1]]
        return generate(prompt.model.module, prompt.moved(prompt.inputs(pictures)), 0, ids).logits

    def _flow(self, word: Word, asked: dict[int, dict[int, float]], is_relevance: bool) -> torch.Tensor:
        ids = [token.number for token in self.tokens[: word.steps[-1] + 1]]
        inputs, module = self.prompt.moved(self.prompt.inputs()), self.prompt.model.module
        values, logits = flow(module, inputs, ids, self.kinds, self.skipped, asked, is_relevance)
        self._check(word, logits)
        return values

    def _probability(self, word: Word, logits: torch.Tensor) -> float:
        chosen = [logits[step].softmax(-1)[self.tokens[step].number] for step in word.steps]
        return float(torch.stack(chosen).double().prod())

    def _check(self, word: Word, logits: torch.Tensor) -> None:
        again = self._probability(word, logits)
        if not abs(again - word.probability) <= SAME_PROBABILITY:
            raise MethodError(
                f"{word.text!r} was written with probability {word.probability:.6f}, and has {again:.6f} in a second "
                "pass: nothing can be said of what the first computed"
            )

    def _map(self, values: torch.Tensor, picture: int, quantity: str, description: str) -> Heatmap:
        grid = self.grids[self._picture(picture)]
        return grid.heatmap(grid.cells(values[grid.tokens.index]), quantity, description)

    def _on_picture(self, word: AnyWord, picture: int) -> torch.Tensor:
        """The attention on the tokens of a picture, ``"layer head token"``."""
        index, layers = self.grids[picture].tokens.index, range(len(self.layers))
        return torch.stack([self.weights(word, layer).cpu()[:, index] for layer in layers])

    def _layer(self, layer: Any) -> int:
        return _place("layer", layer, len(self.layers), "this network reads the picture in")

    def _head(self, layer: int, head: Any) -> int:
        return _place("head", head, self.layers[layer].heads, "this layer has")

    def _picture(self, picture: Any) -> int:
        return _place("picture", picture, len(self.grids), "it was shown")


def _place(name: str, value: Any, count: int, has: str) -> int:
    number = integer_or_none(value)
    if number is None or not -count <= number < count:
        raise QueryError(f"{name} {describe(value)}: {has} {name}s 0 to {count - 1}, or from -{count} to -1")
    return number % count
