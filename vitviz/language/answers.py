"""An answer of a network that writes, with the attention of each of its words."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch

from vitviz.errors.arguments import integer_or_none, named_arguments
from vitviz.errors.arguments import word as one_of
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.errors.messages import describe
from vitviz.errors.number_text import percent
from vitviz.language.maps import PictureGrid
from vitviz.language.prompts import Prompt
from vitviz.language.reading import Reading, rank_heads
from vitviz.language.record import Layer
from vitviz.language.text import Token, Word, find_word
from vitviz.visualization.heatmaps import Heatmap

Whole = Literal["picture", "everything"]
WHOLES: tuple[Whole, ...] = ("picture", "everything")
AnyWord = Word | int | str


@dataclass(frozen=True, eq=False)
class Answer(AttributeAdvice):
    """What a network wrote about pictures, and what it attended to meanwhile.

    Args:
        prompt: pictures and question.
        tokens: that it wrote.
        words: that these make.
        layers: the attention of the layers that read the picture.
        grids: of each picture.

    >>> answer = vitviz.ask("cat.jpg", "what is this", writer)
    >>> answer.attention(0).values.shape
    torch.Size([4, 4])
    """

    prompt: Prompt = field(repr=False)
    tokens: tuple[Token, ...] = field(repr=False)
    words: tuple[Word, ...] = field(repr=False)
    layers: tuple[Layer, ...] = field(repr=False)
    grids: tuple[PictureGrid, ...] = field(repr=False)

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

        Raises:
            QueryError: there is no such word, layer, head or picture.
            MethodError: ``of`` is none of these.
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
        rows = self._on_picture(found, self._picture(picture))[layer]
        row = rows.mean(0) if head is None else rows[self._head(layer, head)]
        share = float(row.sum())
        row = row / max(share, 1e-30) if whole == "picture" else row
        unit = "shares of what lies on the picture" if whole == "picture" else "shares of all that it read"
        description = (
            f"Attention while it wrote {found.text!r}, {which}: {unit}; {percent(share)} of this attention lies on "
            f"{'the picture' if len(self.grids) == 1 else f'picture {picture}'}"
        )
        return self.grids[picture].heatmap(row, "share of the attention", description)

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
