"""Which of a module's tokens are patches, and of which size, as far as shapes of calls and parameters tell.

These values are not trusted: watching measures which token is which patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from vitviz.attention.layout import Prefix, prefix_names
from vitviz.models.watched.grids import AttentionGrid, attention_grids, is_one_grid
from vitviz.models.watched.module_config import Size
from vitviz.models.watched.structure import CallShape
from vitviz.weights.modules.missing import PATCH_SIZE, Question, prefix_question
from vitviz.weights.modules.sizes import find_patch_size, find_prefix


@dataclass(frozen=True)
class TokenGrids:
    """The tokens of a module.

    Args:
        prefix: names of those that are no patches, in their order; None where nothing tells it.
        stages: grids of a hierarchical module, whose layers attend among several; none of another module.
        patches: heights and widths in pixels that its patches may have, the likeliest first.
        extra: number of tokens that are no patches, by the likeliest.
    """

    prefix: tuple[str, ...] | None
    stages: Sequence[AttentionGrid]
    patches: Sequence[Size]
    extra: int

    @classmethod
    def of(
        cls, module: nn.Module, shapes: Sequence[CallShape], size: Size, patch_size: Size | None, prefix: Prefix | None
    ) -> tuple[TokenGrids, dict[str, Question]]:
        """The tokens of a module, and what of them the user must state, by argument of :func:`vitviz.load`.

        Args:
            module: that was watched.
            shapes: of its calls of attention.
            size: height and width of its picture in pixels.
            patch_size, prefix: of the user, as :func:`vitviz.load` takes them.

        Raises:
            ConfigError: ``prefix`` is neither a number nor a list of different names.
        """
        names = find_prefix(module) if prefix is None else prefix_names(prefix)
        count, named = shapes[0].queries, len(names or ())
        stages = [] if is_one_grid(shapes) else attention_grids(shapes, size, named)
        found = patch_size or (None if stages else find_patch_size(module, size, count, named))
        patches = [found] if found else list(dict.fromkeys(stage.patch for stage in stages))
        questions = {} if patches else {"patch_size": PATCH_SIZE}
        height, width = patches[0] if patches else size
        extra = count - (size[0] // height) * (size[1] // width)
        # Of more tokens than patches, the patch size may be wrong.
        is_short = not stages and named < extra < count / 2
        if prefix is None and (is_short or (names is None and extra >= 0)):
            questions["prefix"] = prefix_question(extra)
        return cls(names, stages, patches or [size], extra), questions

    def stage(self, patch: Size) -> AttentionGrid | None:
        """The grid of a hierarchical module whose patches have this height and width."""
        return next((each for each in self.stages if each.patch == patch), None)

    def prefix_beside(self, patch: Size, is_stated: bool) -> tuple[str, ...]:
        """Names of the tokens that attend together with patches of this height and width.

        Args:
            patch: height and width.
            is_stated: whether the user states them, so that they are what is expected.
        """
        stage = self.stage(patch)
        # A class token that is added after the layers takes no part in their attention.
        has_none = stage.extra == 0 if stage else self.extra == 0 and not self.stages
        return () if (has_none and not is_stated) or self.prefix is None else self.prefix
