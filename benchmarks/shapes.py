"""The sizes of Vision Transformers that are measured."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Shape:
    """A square image and the Vision Transformer that it goes through.

    Args:
        name: of the model, as in the papers.
        image: side in pixels.
        patch: side in pixels.
        width, depth, heads: of the encoder.
        layer_scale: whether it has layer scale, as DINOv2.
        classes: of the classifier.
    """

    name: str
    image: int
    patch: int
    width: int
    heads: int
    depth: int = 12
    layer_scale: bool = False
    classes: int = 1000

    @property
    def title(self) -> str:
        return f"{self.name} at {self.image:,} px"

    @property
    def tokens(self) -> int:
        """Patches and the CLS token."""
        return (self.image // self.patch) ** 2 + 1

    @property
    def map_bytes(self) -> int:
        """Bytes of the attention weights of all layers and heads in single precision."""
        return 4 * self.depth * self.heads * self.tokens**2

    def at(self, image: int) -> Shape:
        """The same model for images of another side."""
        return replace(self, image=image)

    def stand_in(self) -> Shape:
        """A tiny network, to try out the benchmark; its numbers mean nothing."""
        return replace(self, name=f"tiny {self.name}", image=tiny(self.image, self.patch), width=64, heads=2, depth=2)


def tiny(image: int, patch: int) -> int:
    """The side of a small image that stands in for one of this side."""
    return patch * max(2, image // patch // 4)


TI_16 = Shape("Ti/16", 224, 16, 192, 3)
B_16 = Shape("B/16", 224, 16, 768, 12)
S_8 = Shape("S/8", 224, 8, 384, 6)
# timm's vit_base_patch14_dinov2, with a classifier.
B_14 = Shape("B/14", 518, 14, 768, 12, layer_scale=True)
FIVE = (TI_16, B_16, S_8, B_14, S_8.at(480))
