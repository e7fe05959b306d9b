"""The checkpoints that a name opens, as a table."""

from __future__ import annotations

from vitviz.errors.arguments import named_arguments
from vitviz.errors.kinds import CheckpointError
from vitviz.errors.tables import html_table, text_table
from vitviz.weights.bundled import BUNDLED, resources
from vitviz.weights.load import load
from vitviz.weights.zoo import ZOO, NamedModel

HEADS = ("name", "family", "architecture", "size", "input", "licence")


class NamedModels(list[NamedModel]):
    """Checkpoints with a name, as a table on a terminal and in a notebook."""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table, without its heads."""
        return [
            (
                each.name,
                each.family,
                each.title,
                f"{each.megabytes:,.0f} MB",
                f"{each.input_size} pixels",
                each.licence,
            )
            for each in self
        ]

    def __repr__(self) -> str:
        return text_table([HEADS, *self.rows])

    def _repr_html_(self) -> str:
        return html_table(self.rows, HEADS)


@named_arguments(CheckpointError)
def list_models() -> NamedModels:
    """The names that :func:`load` opens: published checkpoints by family, and then the bundled one.

    Each is a record with ``name``, ``family``, ``title``, ``repository`` on the Hugging Face hub, ``megabytes``,
    ``licence``, ``input_size`` in pixels, and ``known_for``, one line about its attention. The bundled one has no
    repository, since nothing is downloaded. Any other repository opens as ``"hf:owner/name"``.

    >>> vitviz.list_models()
    name                     family        architecture                 size      input       licence
    vit_tiny_patch16         ViT (AugReg)  ViT-Ti/16                    23 MB     224 pixels  apache-2.0
    ...
    >>> [each.name for each in vitviz.list_models() if each.family == "DINO"]
    ['dino_vits16', 'dino_vits8', 'dino_vitb16', 'dino_vitb8']
    """
    return NamedModels([*ZOO.values(), *map(_bundled, BUNDLED)])


def _bundled(name: str) -> NamedModel:
    """The record of a bundled checkpoint, from its file."""
    model, size = load(name), (resources("checkpoints") / f"{name}.safetensors").stat().st_size / 1e6
    return NamedModel(
        name,
        "Bundled",
        "ViT",
        "",
        round(size, 1),
        model.card["terms"],
        model.preprocessing.height,
        f"Everyday things in {len(model.labels)} classes; nothing is downloaded.",
    )
