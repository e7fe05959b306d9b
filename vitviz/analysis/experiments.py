"""What an analysis answers by experiments: the model runs again without heads or squares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, cast

import torch

from vitviz.analysis.flips import Flip, flip
from vitviz.analysis.same_picture import check_place
from vitviz.attribution.far_look import FarLook, far_look
from vitviz.caching import cached_property
from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import describe
from vitviz.features.analysed import Analysed
from vitviz.metrics.ablation import HeadEffects, head_effects, switched_off
from vitviz.metrics.faithfulness import METRIC_NAMES, RANDOM_ORDERS, Curve, MetricName, faithfulness
from vitviz.models.targets import TargetChoice, effect_score, resolve_target
from vitviz.progress import Progress
from vitviz.visualization.heatmaps import Heatmap

if TYPE_CHECKING:
    from vitviz.analysis.analysis import Analysis


class Experiments(Analysed):
    """The experiments of :class:`vitviz.Analysis`; each runs its model again, but :meth:`far_look`."""

    logits: torch.Tensor

    @named_arguments(MethodError)
    def faithfulness(
        self,
        maps: Mapping[str, Heatmap],
        target: TargetChoice = None,
        *,
        metrics: Iterable[MetricName] = METRIC_NAMES,
        seed: int = 0,
        report: Callable[[Progress], None] | None = None,
        random_orders: int = RANDOM_ORDERS,
    ) -> dict[str, dict[str, Curve]]:
        """How well maps rank the patches that a score depends on, compared with random orders of the patches.

        Args:
            maps: of this analysis, by any name.
            target: a class by label or number (default: the most probable one), whose probability is measured; or
                another target of :meth:`map`, whose score is measured.
            metrics, seed, report, random_orders: as :func:`vitviz.metrics.faithfulness.faithfulness` takes them.

        Returns:
            The curves by metric and map.

        Raises:
            MethodError: these are no maps by name, one is of another picture of this size or of another part of it, the
                model has no such class, there is no such metric, or the target's score is not higher for the whole
                image than for one without any patch.
        """
        if not isinstance(maps, Mapping) or not all(isinstance(each, Heatmap) for each in maps.values()):
            raise MethodError(
                f"maps: {describe(maps)} found; expected maps by name, such as {{'rollout': analysis.rollout()}}"
            )
        for name, heatmap in maps.items():
            check_place(self.prepared, name, heatmap)
        values = {name: heatmap.values for name, heatmap in maps.items()}
        class_or_target = resolve_target(target, self.logits, self.model.labels)
        return faithfulness(
            self.network, self.prepared.pixels, values, class_or_target, metrics, seed, report, random_orders
        )

    @named_arguments(MethodError)
    def head_effects(
        self,
        target: TargetChoice = None,
        *,
        report: Callable[[Progress], None] | None = None,
    ) -> HeadEffects:
        """How a score changes without each head, as :func:`vitviz.metrics.ablation.head_effects`.

        Args:
            target: as :meth:`faithfulness` takes it.
            report: as :func:`vitviz.metrics.ablation.head_effects` takes it.

        Raises:
            MethodError: the model has no such class.
        """
        return head_effects(
            self.network, self.prepared.pixels, resolve_target(target, self.logits, self.model.labels), report
        )

    @named_arguments(MethodError)
    def switched_off(
        self,
        heads: Iterable[tuple[int, int]] = (),
        patches: Iterable[tuple[int, int]] = (),
        *,
        target: TargetChoice = None,
    ) -> torch.Tensor:
        """The model's output without some heads and patches, as :func:`vitviz.metrics.ablation.switched_off`.

        Args:
            heads, patches: as that function takes them.
            target: as :meth:`faithfulness` takes it; with None the whole output is returned.

        Returns:
            Without a target, the logits ``"class"`` (the pooled features if there is no classifier). With one, a single
            number: the probability of a class, or the score of another target.

        Raises:
            MethodError: the model has no such class.
            QueryError: it has no such head or patch, or no patch is left.
        """
        network, pixels, config = self.network, self.prepared.pixels, self.model.network.config
        if target is None:
            return switched_off(network, pixels, heads, patches)
        class_or_target = resolve_target(target, self.logits, self.model.labels)
        watched = effect_score(class_or_target, config.classes, config.probability)
        return watched.scores(switched_off(network, pixels, heads, patches, watched.reads)[None])[0]

    @named_arguments(MethodError)
    def far_look(self) -> FarLook | None:
        """The square that gives most of its attention to one place far from it, as :func:`vitviz.attribution.far_look`.

        Of all layers and heads; None if no place of the grid is far enough.
        """
        return self._far_look

    @cached_property
    def _far_look(self) -> FarLook | None:
        return far_look(self.trace, self.prepared.pixels)

    @named_arguments(MethodError)
    def flip(
        self,
        to: int | str | None = None,
        margin: float = 0.1,
        *,
        order: Heatmap | None = None,
        random_orders: int = 5,
        report: Callable[[Progress], None] | None = None,
    ) -> Flip:
        """A few squares without which the answer is another one, found by covering them as :meth:`switched_off` does.

        The set is small, not the smallest: each of its squares is needed by itself, but for large sets, of which not
        all are tried. The sources are those of :mod:`vitviz.metrics.flip`.

        Args:
            to: the class that shall be the answer, by label or number; None for any other.
            margin: by how much the probability of the new answer must be above that of the old one, or that of ``to``
                above all others; in [0, 1).
            order: a map of this analysis, whose highest values are covered first; by default the squares without whose
                attention another answer gains most, found anew as more are covered.
            random_orders: how many random orders are searched in the same way, for comparison.
            report: receives the number of passes, of about as many as there are patches; an exception from it ends the
                search.

        Raises:
            MethodError: the model gives no probabilities of at least two classes, ``to`` is its answer already, the
                margin is out of range, or the order is of another picture.
        """
        return flip(cast("Analysis", self), to, margin, order, random_orders, report)
