"""An answer of a network that writes, with the attention of each of its words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, overload

import torch

from vitviz.attention.layout import index_from_end
from vitviz.attention.softmax import one_head
from vitviz.attention.token_map import TokenMap
from vitviz.caching import cached_property
from vitviz.errors.arguments import instance, integer, named_arguments, pairs
from vitviz.errors.arguments import word as one_of
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import MethodError, QueryError
from vitviz.errors.messages import describe, quote
from vitviz.errors.number_text import percent
from vitviz.images.geometry import Geometry
from vitviz.language.generation import generate
from vitviz.language.notebook import cell_html
from vitviz.language.passes import flow
from vitviz.language.prompts import Prompt
from vitviz.language.reading import Reading, rank_heads
from vitviz.language.record import Layer, Recorder
from vitviz.language.text import Token, Word, find_word, special_ids, text_of
from vitviz.language.word_maps import PictureGrid, painted
from vitviz.progress import progress_bar
from vitviz.visualization.heatmaps import Heatmap
from vitviz.visualization.user_maps import whole_picture

Whole = Literal["picture", "everything"]
WHOLES: tuple[Whole, ...] = ("picture", "everything")
# Methods of an answer that need a word alone.
WORD_MAPS = ("attention", "relevance", "rollout", "hiding")
# Along the longer side of a picture of which each is hidden in turn.
SQUARES = 12
AnyWord = Word | int | str
# The most by which the logarithm of a token's probability may differ in a second pass; in half precision, more.
SAME_LOG_PROBABILITY = 1e-4
# The least that attention is divided by, in parts of an even share of all that is read.
LEAST_SHARE = 1e-3


@dataclass(frozen=True, eq=False)
class Answer(AttributeAdvice):
    """What a network wrote about pictures, and what it attended to meanwhile.

    Args:
        prompt: pictures and question.
        tokens: that it wrote.
        words: that these make.
        recorder: the attention of all layers.
        grids: of each picture.
        rounding: the most by which a logit may differ in a second pass.

    >>> answer = vitviz.ask("cat.jpg", "what is this", writer)
    >>> answer.attention(0).values.shape
    torch.Size([4, 4])
    """

    prompt: Prompt = field(repr=False)
    tokens: tuple[Token, ...] = field(repr=False)
    words: tuple[Word, ...] = field(repr=False)
    recorder: Recorder = field(repr=False)
    grids: tuple[PictureGrid, ...] = field(repr=False)
    rounding: float = field(repr=False)
    _hidden: dict[Any, torch.Tensor] = field(default_factory=dict, init=False, repr=False)
    """What :meth:`_without` has measured."""

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The attention of the layers that read the picture, which are those that attend to an encoder, or all."""
        return tuple(each for each in self.recorder.layers if each.is_cross) or tuple(self.recorder.layers)

    @property
    def text(self) -> str:
        """All that was written, without special tokens."""
        special = special_ids(self.prompt.model.tokenizer)
        return "".join(token.text for token in self.tokens if token.number not in special).strip()

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, {len(self.words)} words, {len(self.layers)} layers that read the picture)"

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return cell_html(self)

    @named_arguments(QueryError)
    def weights(self, word: AnyWord, layer: int) -> torch.Tensor:
        """The attention of one layer while a word was written, ``"head token"``, in the mean of the word's tokens.

        Args:
            word: its place, its text, or itself; or one of :attr:`tokens`.
            layer: from 0, among those that read the picture; from the end if negative.

        Returns:
            Of all tokens that the layer reads; those before a sliding window have 0.

        Raises:
            QueryError: there is no such word or layer.
        """
        found, steps = self.layers[self._layer(layer)], self._word(word).steps
        # Later tokens did not exist yet.
        return torch.nn.utils.rnn.pad_sequence([found.weights(step).T for step in steps]).mean(1).T.cpu()

    @named_arguments(QueryError)
    def shares(self, word: AnyWord) -> torch.Tensor:
        """The share of attention that lies on the pictures, of everything that is read: ``"layer head"``.

        Raises:
            QueryError: there is no such word.
        """
        return torch.stack([self.weights(word, each)[:, self._index].sum(-1) for each in range(len(self.layers))])

    @cached_property
    def ranking(self) -> list[Reading]:
        """All heads by how much they read of the pictures, the best one first, by :func:`rank_heads`.

        A single token cannot tell a head that reads from one that always looks there: then by the share of their
        attention that lies on the pictures.
        """
        return rank_heads(
            len(self.layers),
            lambda layer: torch.stack([self.weights(token, layer)[:, self._index] for token in self.tokens]),
        )

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
            word: its place, its text, or itself, or one of :attr:`tokens`. Of several tokens, their mean.
            layer: from 0, among those that read the picture; None for that of the best head.
            head: from 0; None for the mean of the layer's, or without a layer for the best one.
            picture: of several, from 0.
            of: ``"picture"`` for shares of what lies on this picture, which add up to 1; ``"everything"`` for shares of
                all that is read.
            relative_to: another answer about the same pictures, such as to "Write a general description of the image.":
                each patch is divided by its attention for the first token of that answer, so that what is read for any
                question is 1. Zhang et al. 2025, "MLLMs Know Where to Look: Training-free Perception of Small Visual
                Details with Multimodal LLMs". They state no floor; here what is below a thousandth of an even share of
                all that is read counts as that, since patches that are never read would be divided by nearly 0.

        Raises:
            QueryError: there is no such word, layer, head or picture.
            ConfigError: ``relative_to`` is no answer.
            MethodError: ``of`` is none of these, or the other answer is about other pictures or of another network.
        """
        found, grid, why = self._word(word), self.grids[self._picture(picture)], ""
        one_of("of", of, WHOLES)
        if layer is None:
            if head is not None:
                raise MethodError(f"head = {describe(head)}: of which layer? expected layer=…, too")
            best, count = self.ranking[0], len(self.ranking)
            layer, head = best.layer, best.head
            why = (
                f", which reads most of the picture of {count} heads"
                if best.bits > 0
                else f", of {count} heads the one with most attention on the picture (one token cannot tell whether it "
                "always looks there)"
            )
        layer = self._layer(layer)
        weights, which = one_head(self.weights(word, layer), "mean" if head is None else head)
        cells = grid.cells(weights)
        share = float(cells.sum() / weights.sum())
        unit, quantity = "shares of all that it read", "share of the attention"
        if relative_to is not None:
            general = instance("relative_to", relative_to, Answer, "vitviz.ask(…)")
            if of != "picture":
                raise MethodError(f"relative_to: of={of!r} is for maps that are not divided; expected one of both")
            if general.prompt.model is not self.prompt.model or general.prompt.pictures != self.prompt.pictures:
                raise MethodError("relative_to: an answer about other pictures or of another network")
            even = len(grid.index) / cells.numel() / general.layers[layer].prompt
            others = general.attention(general.tokens[0], layer, head, picture=picture, of="everything").values
            cells = cells / others.clamp(min=LEAST_SHARE * even)
            unit, quantity = f"times that of {quote(general.prompt.question)}", "relative attention"
        elif of == "picture":
            cells, unit = cells / cells.sum().clamp(min=1e-30), "shares of what lies on the picture"
        place = "the picture" if len(self.grids) == 1 else f"picture {picture % len(self.grids)}"
        return grid.heatmap(
            cells,
            quantity,
            f"Attention while it wrote {found.text!r}, layer {layer}, {which}{why}: {unit}; {percent(share)} of this "
            f"attention lies on {place}",
        )

    @named_arguments(MethodError)
    def rollout(self, word: AnyWord, *, picture: int = 0) -> Heatmap:
        """What of a picture flows to a word through the attention of all layers, by a second pass.

        Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", with the mean of the heads: :func:`flow`.

        Raises:
            QueryError: there is no such word or picture.
            MethodError: the word is not as probable again, or attention is not that of torch's kernel.
        """
        found = self._word(word)
        description = f"Rollout from {found.text!r}, all layers"
        return self._flow(found, {step: {} for step in found.steps}, "share of the rollout", picture, description)

    @named_arguments(MethodError)
    def relevance(self, word: AnyWord, *, against: str | None = None, picture: int = 0) -> Heatmap:
        """What of a picture raises a word, through the attention of all layers and its gradients, by a second pass.

        Chefer et al. 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder
        Transformers": :func:`flow`. The score is the logit of the word's tokens.

        Args:
            word: its place, its text, or itself.
            against: another word in its place, whose logit is subtracted: what speaks for the one and not the other.
                It is compared at the first token in which they differ; the text before that is the same.
            picture: of several, from 0.

        Raises:
            QueryError: there is no such word or picture.
            MethodError: the word is not as probable again, or attention is not that of torch's kernel.
        """
        found, contrast = self._word(word), ""
        factors = {step: {self.tokens[step].number: 1.0} for step in found.steps}
        if against is not None:
            step, other = self._difference(found, against)
            factors = {step: {self.tokens[step].number: 1.0, other: -1.0}}
            subtracted = text_of([other], self.prompt.model.tokenizer)
            contrast = f" and not {against!r} (the logit of {self.tokens[step].text!r} less that of {subtracted!r})"
        return self._flow(found, factors, "relevance", picture, f"Relevance for {found.text!r}{contrast}, all layers")

    def _difference(self, word: Word, against: str) -> tuple[int, int]:
        """The first step in which another word in the place of one has another token, and the number of that token.

        Raises:
            MethodError: there is none, or it is another text before the word.
        """
        model, cut = self.prompt.model, word.steps[0]
        model.ids(against, "against")
        # As it would stand there, with the space of the word.
        before, own = ("".join(token.text for token in part) for part in (self.tokens[:cut], self.tokens[cut:]))
        ids = model.ids(before + own[: len(own) - len(own.lstrip())] + against.strip())
        same = model.ids(before) if before.strip() else ()
        others = zip(word.steps, ids[len(same) :], strict=False)
        differ = [(step, other) for step, other in others if self.tokens[step].number != other]
        if ids[: len(same)] != same or not differ:
            raise MethodError(
                f"against {against!r} in the place of {word.text!r}: no token differs, or not the word's own alone; "
                "expected another word"
            )
        return differ[0]

    @overload
    def hiding(self, word: AnyWord, *, squares: int = ..., picture: int = ...) -> Heatmap: ...

    @overload
    def hiding(self, word: AnyWord, patches: Sequence[tuple[int, int]], *, picture: int = ...) -> float: ...

    @named_arguments(MethodError)
    def hiding(
        self,
        word: AnyWord,
        patches: Sequence[tuple[int, int]] | None = None,
        *,
        squares: int = SQUARES,
        picture: int = 0,
    ) -> Heatmap | float:
        """What a word loses where a part of a picture is painted in its mean colour, by further passes.

        Zeiler & Fergus 2014, "Visualizing and Understanding Convolutional Networks". The words before it stay.

        Args:
            word: its place, its text, or itself.
            patches: ``(row, column)`` of the cells of the picture's other maps, to hide at once.
            squares: along the picture's longer side, each of which is hidden in turn. For each, and for the whole
                picture, the text is written again up to the word; this serves the words before it, too.
            picture: of several, from 0.

        Returns:
            Of squares, a map of the bits by which the word becomes less probable: of one bit, half as probable. Of
            patches, the word's probability without them; ``word.probability`` is that with the whole picture.

        Raises:
            QueryError: there is no such word, picture or patch.
            MethodError: the word is not as probable again with the whole picture.
        """
        found, number = self._word(word), self._picture(picture)
        grid = self.grids[number].geometry
        whole = self._without(found, number, grid)
        self._check(found, whole)
        if patches is not None:
            return float(
                self._without(found, number, grid, tuple(pairs("patches", patches, "row and column", QueryError))).exp()
            )
        image = self.prompt.pictures[number]
        # A square has a pixel at least.
        count = min(integer("squares", squares, 1, MethodError), max(image.size))
        rows, columns = (max(1, round(count * side / max(image.size))) for side in reversed(image.size))
        _, geometry = whole_picture(image, (rows, columns))
        falls = [
            whole - self._without(found, number, geometry, (cell,))
            for cell in progress_bar("hiding squares", [*product(range(rows), range(columns))])
        ]
        text = (
            f"Hiding each of {rows} × {columns} squares: bits by which {found.text!r} becomes less probable; values "
            "below 0 are of squares without which it is likelier"
        )
        bits = torch.stack(falls).unflatten(0, (rows, columns)) / math.log(2)
        return Heatmap(TokenMap(bits, {}, "bits", text, (-math.inf, math.inf), signed=True), image, geometry)

    def _without(
        self, word: Word, picture: int, geometry: Geometry, cells: tuple[tuple[int, int], ...] = ()
    ) -> torch.Tensor:
        """The logarithm of a word's probability without cells of a grid on a picture."""
        found = self._hidden.get((picture, geometry, cells), torch.zeros(0))
        if len(found) <= word.steps[-1]:
            pictures = list(self.prompt.pictures)
            pictures[picture] = painted(pictures[picture], geometry, cells)
            found = self._likely(generate(self.prompt, self.prompt.inputs(pictures), 0, self._ids(word))[1])
            self._hidden[picture, geometry, cells] = found
        return found[list(word.steps)].sum()

    def _likely(self, logits: torch.Tensor) -> torch.Tensor:
        """The logarithm of each token's probability by logits ``"step logit"``."""
        numbers = torch.tensor([[token.number] for token in self.tokens[: len(logits)]])
        return logits.double().log_softmax(-1).cpu().gather(1, numbers)[:, 0]

    def _flow(
        self, word: Word, factors: dict[int, dict[int, float]], quantity: str, picture: int, description: str
    ) -> Heatmap:
        grid = self.grids[self._picture(picture)]
        values, logits = flow(self.prompt, self._ids(word), self.recorder, factors)
        self._check(word, self._likely(logits)[list(word.steps)].sum())
        return grid.heatmap(grid.cells(values), quantity, description)

    def _check(self, word: Word, after: torch.Tensor) -> None:
        """Refuse a second pass that gives a word another probability, from its logarithm there."""
        before = math.log(word.probability) if word.probability else -math.inf
        bound = len(word.steps) * max(SAME_LOG_PROBABILITY, self.rounding)
        # The negated comparison refuses NaN, too.
        if not abs(float(after) - before) <= bound:
            raise MethodError(
                f"{word.text!r} was written with log-probability {before:.6f}, and has {float(after):.6f} in a second "
                f"pass; expected a difference of at most {bound:.1g}: nothing can be said of what the first computed"
            )

    def _ids(self, word: Word) -> list[int]:
        """Numbers of all tokens up to a word."""
        return [token.number for token in self.tokens[: word.steps[-1] + 1]]

    @property
    def _index(self) -> torch.Tensor:
        """Numbers of the tokens of all pictures."""
        return torch.cat([grid.index for grid in self.grids])

    def _word(self, word: AnyWord) -> Word:
        """A word by its place or its text, or itself; or a token."""
        if isinstance(word, Token) and word in self.tokens:
            return Word(word.text.strip(), word.steps, word.probability)
        return find_word(self.words, word)

    def _layer(self, layer: Any) -> int:
        return index_from_end("layer", layer, len(self.layers), "this network reads the picture in")

    def _picture(self, picture: Any) -> int:
        return index_from_end("picture", picture, len(self.grids), "it was shown")
