"""Pictures of strangers, decoded and prepared in a child; the results equal those of the library's own functions."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO

import torch
from PIL import Image

from vitviz.errors.kinds import ConfigError, ImageError
from vitviz.errors.messages import legible
from vitviz.images.colours import ColorProfile
from vitviz.images.decoding import heif_formats
from vitviz.images.encoded import encoded
from vitviz.images.file_kinds import FORMATS, HAS_AVIF, HEIC, MAX_PIXELS, kind_of, start_of
from vitviz.images.geometry import Geometry, size_at
from vitviz.images.image_facts import ImageFacts
from vitviz.images.opening import UnopenedImage, open_image, opened_file
from vitviz.images.preprocessing import Fit, PreparedImage, Preprocessing
from vitviz.images.sources import ValueRange
from vitviz.system.strangers import CHILD_SECONDS, PICTURE_BYTES, PICTURE_SECONDS, PIXELS_A_SECOND, SHORT_SECONDS
from vitviz.worker import Child, Limits, Worker

Parts = Iterator[tuple[dict[str, Any], Any]]
"""What a reader yields: facts as JSON, and bytes."""
Ask = Callable[[], Any]
"""Returns the next question of the app."""

# Of a picture that waits with long work, to which the processes of short work go first.
LIMITS = Limits(PICTURE_BYTES, PICTURE_SECONDS, CHILD_SECONDS, niceness=19)
SHORT_LIMITS = replace(LIMITS, cpu_seconds=SHORT_SECONDS, niceness=0)
# A PNG file is smaller than the levels of its pixels and a quarter more, but for this.
PNG_BYTES = 2**16


def warm_up() -> None:
    """Import and set up everything that reading and preparing a picture needs, in the fork server."""
    # A fork copies no other threads, and a child may start none.
    torch.set_num_threads(1)
    # Nobody reads those about a stranger's picture.
    warnings.simplefilter("ignore")
    if HAS_AVIF:
        importlib.import_module("PIL.AvifImagePlugin").DEFAULT_MAX_THREADS = 1  # type: ignore[attr-defined]
    if heif_formats():
        importlib.import_module("pillow_heif.options").DECODE_THREADS = 1  # type: ignore[attr-defined]
    for image_format in FORMATS:
        image = open_image(encoded(Image.new("RGB", (64, 48)), image_format))
        Preprocessing(32, 32, (0.5,) * 3, (0.5,) * 3).prepare(image, 8, 8).resized(32)


def read_picture(
    ask: Ask, file: BinaryIO, name: str, value_range: ValueRange | None = None, color_profile: ColorProfile = "apply"
) -> Parts:
    """The number of pixels by the header, before any is decoded; then :func:`answers`."""
    unopened = UnopenedImage(file, name, value_range, color_profile, MAX_PIXELS)
    yield {"pixels": math.prod(unopened.size)}, b""
    yield from answers(ask, unopened.open())


def answers(ask: Ask, image: Image.Image) -> Parts:
    """The size of a picture; then a PNG file, or for arguments of a preparation a model's input and what is shown."""
    yield {"width": image.width, "height": image.height}, b""
    if (question := ask()) == "png":
        # Fast rather than small.
        yield {}, encoded(image, "PNG", compress_level=1)
    else:
        preprocessing, patch_height, patch_width, fit, longest_side = question
        prepared = preprocessing.prepare(image, patch_height, patch_width, fit)
        facts = {"geometry": asdict(prepared.geometry), "assumptions": list(prepared.assumptions)}
        yield facts, prepared.pixels.float().numpy()
        # While the app uses the input. What draws a smaller picture enlarges it.
        yield {}, prepared.resized(min(longest_side, max(image.size))).image.tobytes()


@dataclass(frozen=True, eq=False)
class OpenPicture:
    """A picture that a child has decoded.

    Args:
        width, height: in pixels, upright.
    """

    width: int
    height: int
    _child: Child

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.height

    def model_input(
        self, preprocessing: Preprocessing, patch_height: int, patch_width: int, fit: Fit | None, longest_side: int
    ) -> PreparedImage:
        """The result of :meth:`vitviz.Preprocessing.prepare`, on a picture that is black until :meth:`fill`.

        Can be called once. A larger picture is reduced to the longest side.

        Raises:
            ImageError: the child exceeds a limit.
        """
        shape = 1, len(preprocessing.mean), *preprocessing.input_size(self, patch_height, patch_width, fit)
        facts, content = self._child.part(
            (preprocessing, patch_height, patch_width, fit, longest_side), 4 * math.prod(shape)
        )
        try:
            values = torch.frombuffer(bytearray(content), dtype=torch.float32).view(shape)
            geometry = Geometry(**{**facts["geometry"], "box": tuple(map(float, facts["geometry"]["box"]))})
            image = Image.new("RGB", size_at(min(longest_side, max(self.size)), self))
            ImageFacts(tuple(map(str, facts["assumptions"]))).keep(image)
            return PreparedImage(image, values, geometry.resized(*image.size))
        except (KeyError, TypeError, ValueError, RuntimeError, ConfigError):
            raise self._child.answer_error() from None

    def fill(self, image: Image.Image) -> None:
        """Give the picture of a model's input its pixels, which the child reduced meanwhile. Can be called once.

        Raises:
            ImageError: the child exceeds a limit.
        """
        try:
            image.frombytes(self._child.part(nbytes=3 * image.width * image.height)[1])
        except ValueError:
            raise self._child.answer_error() from None

    def png(self) -> bytes:
        """The picture as a PNG file. Can be called once.

        Raises:
            ImageError: the child exceeds a limit.
        """
        return self._child.part("png", 4 * self.width * self.height + PNG_BYTES)[1]


@contextmanager
def decoded_by(
    worker: Worker,
    reader: str,
    file: IO[bytes],
    arguments: tuple[object, ...],
    name: str,
    limits: Limits = LIMITS,
) -> Iterator[OpenPicture]:
    """A picture that a reader decodes; the child runs until the context ends."""
    with file, worker.child(reader, [file], arguments, limits, ImageError, name) as child:
        pixels = child.part()[0].get("pixels")
        if isinstance(pixels, int) and pixels > limits.cpu_seconds * PIXELS_A_SECOND:
            raise child.limit_error(f"{limits.cpu_seconds:g} seconds of a processor")
        width, height = map(child.part()[0].get, ("width", "height"))
        if not (
            isinstance(pixels, int)
            and isinstance(width, int)
            and isinstance(height, int)
            and width > 0
            and 0 < width * height <= pixels <= MAX_PIXELS
        ):
            raise child.answer_error()
        yield OpenPicture(width, height, child)


def open_picture(
    worker: Worker,
    path: Path,
    name: str,
    value_range: ValueRange | None = None,
    color_profile: ColorProfile = "apply",
    limits: Limits = LIMITS,
) -> AbstractContextManager[OpenPicture]:
    """A context with a picture that a child has decoded.

    Args:
        worker: that starts the child.
        path, name, value_range, color_profile: as for :func:`vitviz.open_image`.
        limits: of the child.

    Raises:
        ImageError: as :func:`vitviz.open_image`, or the child exceeds a limit.
    """
    return decoded_by(
        worker,
        f"{__name__}:read_picture",
        opened_file(path, legible(name)),
        (name, value_range, color_profile),
        name,
        # The decoder of HEIC always starts threads.
        replace(limits, threads=kind_of(start_of(path)) == HEIC),
    )
