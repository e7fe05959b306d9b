"""What a link says of the page's model and picture; the explorer adds what it shows of them."""

from __future__ import annotations

import filecmp
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlencode

from vitviz.ui.models import START, ModelChoice
from vitviz.ui.photo import Upload
from vitviz.ui.sight import FITS, TRAINED, Sight
from vitviz.weights import BUNDLED, ZOO, Model, resources

EXAMPLES = ("chelsea.jpg", "rocket.jpg", "coffee.jpg", "astronaut.jpg")


class Linked(NamedTuple):
    """What a link asks for; None where it does not say.

    Args:
        model: a name of the menu.
        example: one of :data:`EXAMPLES`.
        fit, resolution: as :class:`vitviz.ui.sight.Sight` has them.
    """

    model: str | None = None
    example: str | None = None
    fit: str | None = None
    resolution: str | None = None


def link_of(model: Model, choice: ModelChoice, upload: Upload, sight: Sight) -> str:
    """The part of a link behind ``?``: what differs from the page as it opens, as far as others can have it too."""
    said = {}
    if choice != START and choice.source in (*BUNDLED, *ZOO):
        said["model"] = choice.source
    example = example_of(upload)
    if example is not None:
        said["example"] = example
    if sight.fit != model.preprocessing.fit:
        said["fit"] = sight.fit
    if sight.resolution != TRAINED:
        said["resolution"] = sight.resolution
    return urlencode(said)


def read_link(query: Mapping[str, str]) -> Linked:
    """What a link asks for; what is none of the legal values counts as not said."""
    legal = {"model": (*BUNDLED, *ZOO), "example": EXAMPLES, "fit": [fit for _, fit in FITS]}
    found = {name: query[name] for name, values in legal.items() if query.get(name) in values}
    # Any other number is refused where it is used, with a message.
    return Linked(**found, resolution=query.get("resolution"))


def example_of(upload: Upload) -> str | None:
    """Which example a picture is, whatever copy of it; None where it is none."""
    if upload.name not in EXAMPLES:
        return None
    own = resources("assets") / upload.name
    return upload.name if filecmp.cmp(own, upload.path, shallow=False) else None
