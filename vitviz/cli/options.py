"""The options of the `vitviz` command, generated from the tables of methods, families and settings."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import Any

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.attention.layout import Query
from vitviz.attention.precision import PRECISIONS
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution import Method
from vitviz.attribution.parameters import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.cli.targets import add_target, patch_choice
from vitviz.images.colours import COLOR_PROFILES
from vitviz.images.preprocessing import FITS
from vitviz.training.config import PRESETS, Augmentation, TrainingConfig
from vitviz.visualization.colormaps import COLORMAPS
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.scales import PERCENTILES, SCALES
from vitviz.weights import BUNDLED, FAMILIES, OVERRIDES
from vitviz.weights.metadata.settings import MAX_SIDE

OUTPUT_HELP = "picture to write (default: IMAGE.METHOD.png in the working folder)"


def add_checkpoint(parser: argparse.ArgumentParser, argument: str = "--checkpoint") -> None:
    """Add a checkpoint and its overrides; an optional argument also adds precision and device."""
    checkpoint_help = "a name (see vitviz models), hf:OWNER/NAME, or a file or folder"
    if argument.startswith("-"):
        parser.add_argument(argument, default=BUNDLED[0], help=f"{checkpoint_help} (default: %(default)s)")
        parser.add_argument("--device", default="cpu", help="where the model runs, such as cuda (default: %(default)s)")
        description = "number format in which the layers compute (default: %(default)s)"
        parser.add_argument("--precision", choices=PRECISIONS, default="float32", help=description)
    else:
        parser.add_argument(argument, help=checkpoint_help)
    names = ", ".join(family.name for family in FAMILIES)
    parser.add_argument("--family", default=None, help=f"the family, if the checkpoint's keys do not tell it: {names}")
    parser.add_argument(
        "--fact",
        dest="overrides",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"what the checkpoint leaves open, such as heads=6: {', '.join(OVERRIDES)}; or ignore=PATTERN, such as "
        "ignore=head.*, for keys and settings to leave out; or base=CHECKPOINT, that an adapter is merged into",
    )


def add_verification(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``vitviz verify``."""
    add_checkpoint(parser, "checkpoint")
    parser.add_argument("--image", type=Path, default=None, help="a photograph (default: a bundled one)")
    size_help = "height and width in pixels, or one number, to compare besides the trained size; may be repeated"
    parser.add_argument("--size", dest="sizes", type=_size, action="append", default=[], metavar="HxW", help=size_help)


def _size(text: str) -> tuple[int, int]:
    sides = text.replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isdecimal() and 0 < int(side) <= MAX_SIDE for side in sides):
        raise argparse.ArgumentTypeError(f"{text!r}: expected HEIGHTxWIDTH or one number, in pixels")
    return int(sides[0]), int(sides[-1])


def add_images(parser: argparse.ArgumentParser, count: int, noun: str) -> None:
    """Add a folder of images, of which ``count`` are used by default; ``noun`` is what is written for each image."""
    parser.add_argument("images", type=Path, help="folder with images, at any depth")
    count_help = "how many of them, chosen at random (default: %(default)s)"
    parser.add_argument("--count", type=int, default=count, help=count_help)
    add_resolution(parser)
    parser.add_argument("-o", "--output", type=Path, default=None, help=f"JSON file for every {noun} of every image")
    add_checkpoint(parser)


def add_method(parser: argparse.ArgumentParser, method: Method) -> None:
    """Add the options of a method and of the picture of its map."""
    parser.add_argument("-o", "--output", type=Path, default=None, help=OUTPUT_HELP)
    for parameter in method.parameters:
        add_parameter(parser, parameter)
    if method.class_specific:
        add_target(parser)
    add_style(parser)


def add_style(parser: argparse.ArgumentParser) -> None:
    """Add the options for how a map is drawn."""
    parser.add_argument("--colormap", choices=COLORMAPS, default=Style.colormap, help="default: %(default)s")
    parser.add_argument(
        "--opacity", type=float, default=Style.opacity, help="opacity of the colours (default: %(default)s)"
    )
    parser.add_argument("--smooth", action="store_true", help="interpolate between patches")
    parser.add_argument("--grid", action="store_true", help="draw the patch grid")
    scale_help = "from values to colours (default: chosen from the values of the map)"
    parser.add_argument("--scale", choices=SCALES, default=None, help=scale_help)
    percentiles_help = "between which a robust scale lies (default: {:g} {:g})".format(*PERCENTILES)
    parser.add_argument(
        "--percentiles", type=float, nargs=2, default=PERCENTILES, metavar=("LOW", "HIGH"), help=percentiles_help
    )


def add_parameter(parser: argparse.ArgumentParser, parameter: Parameter) -> None:
    """Add the option of a method's parameter."""
    parser.add_argument(_flag(parameter.name), dest=parameter.name, default=parameter.default, **argument_of(parameter))


def add_resolution(parser: argparse.ArgumentParser) -> None:
    description = "shorter side of the model's input, a multiple of the patch (default: the trained one)"
    parser.add_argument("--resolution", type=int, default=None, metavar="PIXELS", help=description)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add how the values of pictures are read."""
    range_help = "values of black and white in pictures of 16 bits or floats, such as 0 4095 (default: of the format)"
    parser.add_argument("--value-range", type=float, nargs=2, default=None, metavar=("BLACK", "WHITE"), help=range_help)
    add_color_profile(parser)


def add_color_profile(parser: argparse.ArgumentParser) -> None:
    profile_help = (
        "convert colours from a picture's profile to sRGB, or keep the stored values (default: as in training)"
    )
    parser.add_argument("--color-profile", choices=COLOR_PROFILES, default=None, help=profile_help)


def add_image(parser: argparse.ArgumentParser) -> None:
    """Add an image, and the options of its analysis."""
    parser.add_argument("image", help="path of the image")
    add_checkpoint(parser)
    parser.add_argument(
        "--fit", choices=FITS, default=None, help="how the image fits the input (default: the checkpoint's own)"
    )
    add_resolution(parser)
    add_reading(parser)
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=MAX_BYTES,
        metavar="BYTES",
        help="most memory that the analysis may need (default: %(default)s)",
    )


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add all settings of a training run; a preset has the defaults."""
    parser.add_argument(
        "--preset", choices=PRESETS, help="start from the settings of a run that is worth repeating; see below"
    )
    for option in (*fields(TrainingConfig), *fields(Augmentation)):
        if option.default is not MISSING:
            _add_training_option(parser, option)
    named = "\n".join(f"  {name:<10}{_option_text(config)}" for name, config in PRESETS.items())
    parser.epilog = f"presets:\n{named}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def training_config(preset: str | None, **values: Any) -> TrainingConfig:
    """The settings of a preset, or the defaults, with some values replaced.

    Raises:
        ConfigError: a value is out of range.
    """
    config = PRESETS[preset] if preset is not None else TrainingConfig()
    names = {option.name for option in fields(Augmentation)} & values.keys()
    augmentation = replace(config.augmentation, **{name: values.pop(name) for name in names})
    return replace(config, **values, augmentation=augmentation)


def _option_text(config: TrainingConfig) -> str:
    """A preset written as options, those that differ from the defaults."""
    plain = TrainingConfig()
    pairs = ((config, plain), (config.augmentation, plain.augmentation))
    changed = [
        (option.name, getattr(settings, option.name))
        for settings, default in pairs
        for option in fields(settings)
        if option.default is not MISSING and getattr(settings, option.name) != getattr(default, option.name)
    ]
    return " ".join(_option_of_setting(name, value) for name, value in changed)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _option_of_setting(name: str, value: Any) -> str:
    """A setting written as an option."""
    if isinstance(value, bool):
        return _flag(name if value else f"no_{name}")
    return f"{_flag(name)} {value}"


def _add_training_option(parser: argparse.ArgumentParser, option: Field[Any]) -> None:
    help = f"{option.metadata['help']} (default: {option.default})"
    action: Any = argparse.BooleanOptionalAction if isinstance(option.default, bool) else "store"
    kind: dict[str, Any] = {} if isinstance(option.default, bool) else {"type": type(option.default)}
    # An option that is not given must not override the preset.
    parser.add_argument(
        _flag(option.name), dest=option.name, default=argparse.SUPPRESS, help=help, action=action, **kind
    )


def argument_of(parameter: Parameter) -> dict[str, Any]:
    """The arguments of ``add_argument`` for a parameter: its type, choices and help."""
    match parameter:
        case Choice():
            values = [value for _, value in parameter.options if value is not None]
            return {"choices": values, "help": f"{parameter.help} (default: {parameter.default or 'none'})"}
        case Number():
            bounds = f"{parameter.minimum:g} to {parameter.maximum:g}, default: {parameter.default:g}"
            return {"type": int if parameter.whole else float, "help": f"{parameter.help} ({bounds})"}
        case LayerNumber():
            counted = f"from 0, or from the end as -1 (default: {parameter.default})"
            return {"type": int, "help": f"{parameter.help}; {counted}"}
        case HeadNumber():
            counted = f"counted from 0, or {', '.join(HEAD_FUSIONS)}; default: {parameter.default}"
            return {"type": _head, "help": f"{parameter.help} ({counted})"}
        case TokenQuery():
            tokens = "cls, patches (their mean), 'register 1', ROW,COLUMN, or a token's number"
            return {
                "type": _query,
                "help": f"{parameter.help}: {tokens} (default: {parameter.default_help})",
            }
        case ClassTarget():
            return {"help": f"{parameter.help}: a name or a number (default: the most probable)"}


def _head(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() else text


def _query(text: str) -> Query:
    if "," in text:
        return patch_choice(text)
    return int(text) if text.strip().isdecimal() else text
