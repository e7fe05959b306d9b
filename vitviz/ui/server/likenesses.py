"""Likeness to other pictures as targets: each other picture is run through the model once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakKeyDictionary

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.likeness import likeness_target
from vitviz.images.preprocessing import PreparedImage
from vitviz.models.targets import Target
from vitviz.ui.arguments import LikenessRequest
from vitviz.ui.pictures import Upload
from vitviz.ui.server.budget import MemoryBudget
from vitviz.ui.server.estimates import forward_bytes
from vitviz.ui.server.fair_lock import FairLock

# Of one analysis; each holds the features of one token.
MAX_KEPT = 8
OWN_PICTURE = "this picture"


class Likenesses:
    """The last targets of each analysis, as long as it is kept. Safe between threads.

    Args:
        budget: of the forward passes.
        prepare: brings another picture to the model's input as that of an analysis was, and gives its name; it takes
            the analysis, the picture and ``waiting`` as :meth:`vitviz.ui.server.fair_lock.FairLock.turn` does.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        prepare: Callable[[Analysis, str | Upload, Callable[[int], None] | None], tuple[PreparedImage, str]],
    ) -> None:
        self._budget, self._prepare = budget, prepare
        self._made: WeakKeyDictionary[Analysis, OrderedDict[LikenessRequest, Target]] = WeakKeyDictionary()
        # Whoever waits here may have a turn elsewhere, and nobody who has a turn here waits for one.
        self._computing, self._lock = FairLock(), threading.Lock()

    def target(self, analysis: Analysis, request: LikenessRequest, asking: Callable[[], None] | None = None) -> Target:
        """The target of a request: as it was made before, or by a forward pass of the other picture.

        Args:
            analysis: whose maps are to be about it.
            request: the other picture.
            asking: called now and then while others have their turn or the memory; an exception that it raises ends it.

        Raises:
            ImageError: the other picture is not kept, or cannot be opened.
            QueryError: it has no such patch.
            LimitError: there is no room for it.
        """
        with self._lock:
            known = self._made.get(analysis, OrderedDict[LikenessRequest, Target]()).get(request)
        if known is not None:
            return known

        def waiting(before: int) -> None:
            if asking is not None:
                asking()

        prepared, name = analysis.prepared, OWN_PICTURE
        if request.picture is not None:
            prepared, name = self._prepare(analysis, request.picture, waiting)
        network = analysis.model.network
        needed = forward_bytes(network.config, network.config.layout(*prepared.pixels.shape[-2:]), 1)
        with self._computing.turn(waiting), self._budget.share(needed, "this likeness", asking):
            found = likeness_target(network, prepared, request.patch, name)
        with self._lock:
            made = self._made.setdefault(analysis, OrderedDict())
            made[request] = found
            while len(made) > MAX_KEPT:
                made.popitem(last=False)
        return found
