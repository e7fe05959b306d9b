"""Every method of :data:`vitviz.METHODS` as a method of :class:`vitviz.Analysis`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from vitviz.attention.layout import Query
from vitviz.attention.softmax import HeadFusion
from vitviz.attribution.attention import Direction
from vitviz.attribution.exclusion import Exclude
from vitviz.attribution.propagation import Reference
from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import MethodError
from vitviz.models.targets import TargetChoice
from vitviz.progress import Progress
from vitviz.visualization.heatmaps import Heatmap

Report = Callable[[Progress], None]


class MethodMaps(ABC):
    """The methods by name, for editors and type checkers; parameters, values and errors are those of :meth:`map`.

    A test holds every signature to its record in :data:`vitviz.METHODS`.
    """

    @abstractmethod
    def map(self, *args: Any, **kwargs: Any) -> Heatmap:
        """The map of any method, as :meth:`vitviz.Analysis.map`."""

    @named_arguments(MethodError)
    def attention(
        self,
        layer: int = -1,
        head: int | HeadFusion = "mean",
        query: Query | None = None,
        direction: Direction = "row",
        exclude: Exclude = None,
    ) -> Heatmap:
        """One token's attention in one layer, as :func:`vitviz.attribution.attention`; Vaswani et al. 2017.

        Args:
            layer: counted from 0, or from the end as ``-1``.
            head: counted from 0, or ``"mean"``, ``"max"`` or ``"min"`` over the heads.
            query: the token: ``"cls"``, ``"register 1"``, a patch ``(row, column)``, ``"patches"`` for their mean, or a
                token index; None for CLS, or for all patches where the model has no CLS.
            direction: ``"row"`` for what the token attends to, ``"column"`` for what attends to it.
            exclude: tokens that nobody attends to: ``"outliers"``, ``"sinks"``, or a list of tokens.
        """
        return self.map("attention", layer=layer, head=head, query=query, direction=direction, exclude=exclude)

    @named_arguments(MethodError)
    def pooling_attention(self, head: int | HeadFusion = "mean") -> Heatmap:
        """The attention of the learned query, as :func:`vitviz.attribution.pooling_attention`; Lee et al. 2019.

        Args:
            head: counted from 0, or ``"mean"``, ``"max"`` or ``"min"`` over the heads.
        """
        return self.map("pooling_attention", head=head)

    @named_arguments(MethodError)
    def attention_mass(
        self, layer: int = -1, head: int | HeadFusion = "mean", query: Query | None = None, mass: float = 0.6
    ) -> Heatmap:
        """The fewest patches that hold a share of a token's attention, as :func:`vitviz.attribution.attention_mass`.

        Caron et al. 2021.

        Args:
            layer: counted from 0, or from the end as ``-1``.
            head: counted from 0, or ``"mean"``, ``"max"`` or ``"min"`` over the heads.
            query: the token: ``"cls"``, ``"register 1"``, a patch ``(row, column)``, ``"patches"`` for their mean, or a
                token index; None for CLS, or for all patches where the model has no CLS.
            mass: the share, in (0, 1].
        """
        return self.map("attention_mass", layer=layer, head=head, query=query, mass=mass)

    @named_arguments(MethodError)
    def value_attention(
        self, layer: int = -1, head: int | HeadFusion = "mean", query: Query | None = None, exclude: Exclude = None
    ) -> Heatmap:
        """Attention times the norm of the value that it weights, as :func:`vitviz.attribution.value_attention`.

        Kobayashi et al. 2020.

        Args:
            layer: counted from 0, or from the end as ``-1``.
            head: counted from 0, or ``"mean"``, ``"max"`` or ``"min"`` over the heads.
            query: the token: ``"cls"``, ``"register 1"``, a patch ``(row, column)``, ``"patches"`` for their mean, or a
                token index; None for CLS, or for all patches where the model has no CLS.
            exclude: tokens that nobody attends to: ``"outliers"``, ``"sinks"``, or a list of tokens.
        """
        return self.map("value_attention", layer=layer, head=head, query=query, exclude=exclude)

    @named_arguments(MethodError)
    def rollout(
        self,
        head_fusion: HeadFusion = "mean",
        discard_ratio: float = 0.0,
        residual_weight: float = 0.5,
        start_layer: int = 0,
        query: Query | None = None,
        reference: Reference | None = None,
        exclude: Exclude = None,
        end_layer: int = -1,
    ) -> Heatmap:
        """Attention followed through the layers, as :func:`vitviz.attribution.rollout`; Abnar & Zuidema 2020.

        Args:
            head_fusion: ``"mean"``, ``"max"`` or ``"min"`` over the heads.
            discard_ratio: share of a layer's entries that are set to zero, lowest first, in [0, 1).
            residual_weight: share of the residual connection, in [0, 1].
            start_layer, end_layer: the lowest and highest layer, counted from 0, or from the end as ``-1``.
            query: the token: ``"cls"``, ``"register 1"``, a patch ``(row, column)``, ``"patches"`` for their mean, or a
                token index; None for CLS, or for all patches where the model has no CLS.
            reference: ``"vit-explain"`` for the numbers of that package, None for the paper.
            exclude: tokens that nobody attends to: ``"outliers"``, ``"sinks"``, or a list of tokens.
        """
        return self.map(
            "rollout",
            head_fusion=head_fusion,
            discard_ratio=discard_ratio,
            residual_weight=residual_weight,
            start_layer=start_layer,
            query=query,
            reference=reference,
            exclude=exclude,
            end_layer=end_layer,
        )

    @named_arguments(MethodError)
    def attention_flow(
        self,
        most_patches: int = 64,
        start_layer: int = 0,
        query: Query | None = None,
        end_layer: int = -1,
        *,
        report: Report | None = None,
    ) -> Heatmap:
        """The maximum flow through the layers, as :func:`vitviz.attribution.attention_flow`; Abnar & Zuidema 2020.

        Args:
            most_patches: neighbouring patches are pooled into at most so many cells.
            start_layer, end_layer: the lowest and highest layer, counted from 0, or from the end as ``-1``.
            query: the token: ``"cls"``, ``"register 1"``, a patch ``(row, column)``, ``"patches"`` for their mean, or a
                token index; None for CLS, or for all patches where the model has no CLS.
            report: receives the progress; an exception that it raises ends the computation.
        """
        return self.map(
            "attention_flow",
            most_patches=most_patches,
            start_layer=start_layer,
            query=query,
            end_layer=end_layer,
            report=report,
        )

    @named_arguments(MethodError)
    def gradient_rollout(
        self,
        target: TargetChoice = None,
        discard_ratio: float = 0.0,
        residual_weight: float = 0.5,
        start_layer: int = 0,
        query: Query | None = None,
        reference: Reference | None = None,
        end_layer: int = -1,
    ) -> Heatmap:
        """Rollout of attention that raises a score, as :func:`vitviz.attribution.gradient_rollout`.

        Chefer, Gur & Wolf 2021, "Transformer Interpretability Beyond Attention Visualization".

        Args:
            target: a class by label or number, or a :class:`vitviz.Target`; None for the most probable class.
            discard_ratio: share of a layer's entries that are set to zero, lowest first, in [0, 1).
            residual_weight: share of the residual connection, in [0, 1].
            start_layer, end_layer: the lowest and highest layer, counted from 0, or from the end as ``-1``.
            query: the token: ``"cls"``, ``"register 1"``, a patch ``(row, column)``, ``"patches"`` for their mean, or a
                token index; None for CLS, or for all patches where the model has no CLS.
            reference: as :func:`vitviz.attribution.gradient_rollout` takes it.
        """
        return self.map(
            "gradient_rollout",
            target=target,
            discard_ratio=discard_ratio,
            residual_weight=residual_weight,
            start_layer=start_layer,
            query=query,
            reference=reference,
            end_layer=end_layer,
        )

    @named_arguments(MethodError)
    def relevance(
        self, target: TargetChoice = None, query: Query | None = None, start_layer: int = 0, end_layer: int = -1
    ) -> Heatmap:
        """What raises a score, through all layers (TransMM), as :func:`vitviz.attribution.relevance`.

        Chefer, Gur & Wolf 2021, "Generic Attention-model Explainability".

        Args:
            target: a class by label or number, or a :class:`vitviz.Target`; None for the most probable class.
            query: the token: ``"cls"``, ``"register 1"``, a patch ``(row, column)``, ``"patches"`` for their mean, or a
                token index; None for CLS, or for all patches where the model has no CLS.
            start_layer, end_layer: the lowest and highest layer, counted from 0, or from the end as ``-1``.
        """
        return self.map("relevance", target=target, query=query, start_layer=start_layer, end_layer=end_layer)

    @named_arguments(MethodError)
    def legrad(self, target: TargetChoice = None, start_layer: int = 0, end_layer: int = -1) -> Heatmap:
        """Where more attention would raise a score, as :func:`vitviz.attribution.legrad`; Bousselham et al. 2025.

        Args:
            target: a class by label or number, or a :class:`vitviz.Target`; None for the most probable class.
            start_layer, end_layer: the lowest and highest layer, counted from 0, or from the end as ``-1``.
        """
        return self.map("legrad", target=target, start_layer=start_layer, end_layer=end_layer)

    @named_arguments(MethodError)
    def grad_cam(self, target: TargetChoice = None, layer: int = -1) -> Heatmap:
        """Where features raise a score, as :func:`vitviz.attribution.grad_cam`; Selvaraju et al. 2017.

        Args:
            target: a class by label or number, or a :class:`vitviz.Target`; None for the most probable class.
            layer: counted from 0, or from the end as ``-1``.
        """
        return self.map("grad_cam", target=target, layer=layer)

    @named_arguments(MethodError)
    def integrated_gradients(
        self,
        target: TargetChoice = None,
        steps: int = 32,
        signed: bool = False,
        *,
        report: Report | None = None,
    ) -> Heatmap:
        """Gradients summed from a blank image to the image, as :func:`vitviz.attribution.integrated_gradients`.

        Sundararajan, Taly & Yan 2017.

        Args:
            target: a class by label or number, or a :class:`vitviz.Target`; None for the most probable class.
            steps: of the path from the blank image, at least 1.
            signed: whether patches that lower the score are shown, too, below zero.
            report: receives the progress; an exception that it raises ends the computation.
        """
        return self.map("integrated_gradients", target=target, steps=steps, signed=signed, report=report)

    @named_arguments(MethodError)
    def occlusion(self, target: TargetChoice = None, signed: bool = False, *, report: Report | None = None) -> Heatmap:
        """How far a score falls without each patch, as :func:`vitviz.attribution.occlusion`; Zeiler & Fergus 2014.

        Args:
            target: a class by label or number, or a :class:`vitviz.Target`; None for the most probable class.
            signed: whether patches that lower the score are shown, too, below zero.
            report: receives the progress; an exception that it raises ends the computation.
        """
        return self.map("occlusion", target=target, signed=signed, report=report)
