"""The pictures that the command is given: files, folders and the standard input; and the names of their results."""

from __future__ import annotations

import hashlib
import io
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import analyze
from vitviz.cli.printing import (
    STANDARD,
    check_output,
    is_stream,
    make_folder,
    note,
    print_error,
    print_json,
    spelled,
    write_whole,
)
from vitviz.errors.kinds import ConfigError, DataError, ImageError, VitvizError
from vitviz.errors.messages import legible
from vitviz.images.file_kinds import FILE_SUFFIXES, left_out, picture_files, why_left_out
from vitviz.system.paths import files_in
from vitviz.visualization.saving import check_ending, save_as
from vitviz.weights import Model

if TYPE_CHECKING:
    from vitviz.visualization.drawing import OwnFigure

STDIN = "stdin"
SOME_FAILED = 1


@dataclass(frozen=True)
class Picture:
    """A picture on the command line.

    Args:
        path: its file, or ``-`` for the standard input.
        stem: the beginning of its results' path, relative to the folder of results.
    """

    path: str
    stem: str

    @property
    def name(self) -> str:
        """Its name in what is printed."""
        return STDIN if self.path == STANDARD else Path(self.path).name

    def result(self, folder: Path | None, suffix: str) -> Path:
        """The path of a result, by default in the working folder, whose own folder is made.

        The picture's own folder may be read-only, or somebody else's.

        Raises:
            ConfigError: the folder cannot be made.
        """
        path = (folder or Path()) / (self.stem + suffix)
        make_folder(path.parent)
        return path


def is_one(paths: Sequence[str]) -> bool:
    """Whether the command is given one picture by name, and so has one result."""
    return len(paths) == 1 and not Path(paths[0]).is_dir()


def find_pictures(paths: Sequence[str]) -> list[Picture]:
    """The pictures of files, of folders at any depth, and of the standard input; their results differ in name.

    Raises:
        DataError: a folder has no picture.
        ConfigError: the standard input is given twice, or is a terminal.
    """
    if paths.count(STANDARD) > 1:
        raise ConfigError("- is given twice; expected the standard input once")
    if STANDARD in paths and sys.stdin.isatty():
        raise ConfigError("-: a terminal has no picture; expected one from a pipe, such as cat photo.jpg | vitviz …")
    found: dict[str, Path] = {}
    for path in paths:
        if path == STANDARD:
            found[path] = Path(STDIN)
        elif Path(path).is_dir():
            found |= {str(picture): picture.relative_to(path) for picture in _pictures_in(Path(path))}
        else:
            found[path] = Path(Path(path).name)
    stems = {path: str(place.with_name(_stem(Path(path), place.name))) for path, place in found.items()}
    # Some file systems take capitals for the same.
    counts = Counter(stem.casefold() for stem in stems.values())
    return [
        Picture(path, stem if counts[stem.casefold()] == 1 else f"{stem}.{_digest(path)}")
        for path, stem in stems.items()
    ]


def find_picture(path: str) -> Picture:
    """A single picture.

    Raises:
        ConfigError: as :func:`find_pictures`.
        ImageError: it is a folder.
    """
    if Path(path).is_dir():
        raise ImageError(f"{path}: a folder; expected one picture")
    return find_pictures([path])[0]


def _pictures_in(folder: Path) -> list[Path]:
    pictures, others = picture_files(files_in(folder), folder)
    found = left_out([(str(other.relative_to(folder)), why_left_out(other)) for other in others])
    if not pictures:
        raise DataError(
            f"{folder}: no picture in it: {found or 'no file'}; expected files such as .jpg or .png, at any depth"
        )
    if found:
        note(f"{folder}: {found}")
    return pictures


def _stem(path: Path, name: str) -> str:
    """The name of a picture in those of its results.

    It is whole if the picture has no ending of a picture, or a picture beside it differs in its ending alone.
    """
    endings = [each for suffix in FILE_SUFFIXES for each in (suffix, suffix.upper()) if each != path.suffix]
    is_alone = path.suffix.lower() in FILE_SUFFIXES and not any(map(Path.exists, map(path.with_suffix, endings)))
    return Path(name).stem if is_alone else name


def _digest(path: str) -> str:
    return hashlib.sha256(str(Path(path).absolute()).encode(errors="surrogateescape")).hexdigest()[:8]


def analysis_of(picture: Picture, model: Model, **settings: Any) -> Analysis:
    """The analysis of a picture; prints what opening it assumed."""
    analysis = analyze(source_of(picture.path), model, **settings)
    for sentence in analysis.prepared.assumptions:
        note(f"{picture.name}: assumed: {spelled(sentence)}")
    return analysis


def take_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of :func:`vitviz.analyze` out of those of a command."""
    return {name: options.pop(name) for name in ("fit", "resolution", "value_range", "color_profile", "max_bytes")}


def source_of(path: str) -> Any:
    """What :func:`vitviz.analyze` takes for a path."""
    if path != STANDARD:
        return path
    content = io.BytesIO(sys.stdin.buffer.read())
    content.name = STDIN
    return content


def check_picture(output: Path | None, source: str, numbers: bool = False) -> None:
    """Check an output as :func:`check_output`, and that its ending is one of a picture, or of ``numbers``.

    Raises:
        ConfigError, ImageError: it cannot be written.
    """
    check_output(output, source)
    if output is not None and not is_stream(output):
        check_ending(output, numbers)


def write_picture(output: Path, picture: Callable[[], Image.Image], save: Callable[[Path], None]) -> None:
    """Write a picture as PNG into a stream, or as ``save`` does into a file."""
    if is_stream(output):
        write_whole(output, partial(picture().save, format="PNG"))
    else:
        save(output)


def write_figure(output: Path, panels: OwnFigure) -> None:
    """Write a figure as a picture, or as vectors where the ending is that of a format of vectors."""

    def picture() -> Image.Image:
        return Image.open(io.BytesIO(panels.png())).convert("RGB")

    write_picture(output, picture, partial(save_as, picture=picture, figure=lambda: panels))


def for_each(paths: Sequence[str], work: Callable[[Picture], dict[str, Any] | None], json: bool = False) -> int:
    """Work on every picture; one that fails is a line on the standard error stream, and the others go on.

    Args:
        paths: as :func:`find_pictures` takes them.
        work: returns the picture's record.
        json: whether to print the records, each as a line of JSON.

    Returns:
        The exit status.

    Raises:
        VitvizError, OSError: the only picture fails.
    """
    failed = 0
    for picture in find_pictures(paths):
        record: dict[str, Any] = {"image": picture.path}
        try:
            record |= work(picture) or {}
        except (VitvizError, OSError) as error:
            if is_one(paths) or isinstance(error, BrokenPipeError):
                raise
            failed += 1
            # The message often begins with the name of the file.
            text = spelled(str(error)).removeprefix(f"{picture.name}: ")
            record["error"] = text
            print_error(f"{legible(picture.path)}: {text}")
        if json:
            print_json(record)
    return SOME_FAILED if failed else 0
