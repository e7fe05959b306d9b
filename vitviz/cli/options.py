"""The options of the `vitviz` command that several commands have, from the tables of methods, families and settings."""

from __future__ import annotations

import argparse
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import Method
from vitviz.attribution.parameters import Parameter
from vitviz.cli.grammar import AUTO, TYPES, Command, Fact, batch_size, file, patch, size
from vitviz.images.colours import COLOR_PROFILES
from vitviz.images.preprocessing import FITS
from vitviz.training.config import PRESETS, TrainingConfig
from vitviz.visualization.colormaps import COLORMAPS
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.scales import PERCENTILES, SCALES
from vitviz.weights import BUNDLED
from vitviz.weights.families import FAMILIES
from vitviz.weights.overrides import CHOICES, OVERRIDES

OUTPUT_HELP = (
    "picture to write, .npz for its numbers, - for the standard output; a folder for several pictures "
    "(default: IMAGE.METHOD.png in the working folder)"
)
FACTS_HEADING = "what the checkpoint does not state"
MAP_GRAMMAR = "METHOD[:NAME=VALUE,…]"
# What the user may state of a checkpoint whose file does not; --ignore and --base are beside them.
FACTS: dict[str, dict[str, Any]] = {
    "heads": {"type": int, "metavar": "COUNT", "help": "attention heads of a layer"},
    "image_size": {"type": size, "metavar": "HxW", "help": "trained size in pixels"},
    "patch_size": {"type": size, "metavar": "HxW", "help": "size of a patch in pixels"},
    "activation": {"help": "activation function of the MLPs"},
    "pooling": {"help": "what the classifier reads"},
    "final_norm": {"help": "place of the last LayerNorm"},
    "position_rule": {"help": "rule by which position embeddings are resized"},
    "normalisation": {"help": "mean and standard deviation of the pixels"},
    "probability": {"help": "what the classifier's outputs are"},
    "norm_epsilon": {"type": float, "metavar": "NUMBER", "help": "epsilon of the LayerNorms"},
    "architecture": {"metavar": "NAME", "help": "timm's name of the architecture"},
}


def add_checkpoint(command: Command, argument: str = "--checkpoint") -> None:
    """Add a checkpoint and its facts; an optional argument also adds precision and device."""
    checkpoint_help = "a name (see vitviz models), hf:OWNER/NAME, or a file or folder"
    if argument.startswith("-"):
        command.add_argument(argument, type=file, default=BUNDLED[0], help=f"{checkpoint_help} (default: %(default)s)")
        command.add_argument(
            "--device", default="cpu", help="where the model runs, such as cuda (default: %(default)s)"
        )
        description = "number format in which the layers compute (default: %(default)s)"
        command.add_argument("--precision", choices=PRECISIONS, default="float32", help=description)
    else:
        command.add_argument(argument, type=file, help=checkpoint_help)
    names = ", ".join(family.name for family in FAMILIES)
    command.add_argument("--family", default=None, help=f"the family, if the checkpoint's keys do not tell it: {names}")
    for fact in OVERRIDES:
        _add_fact(command, fact, **FACTS[fact] | ({"choices": CHOICES[fact]} if fact in CHOICES else {}))
    patterns = "keys and settings to leave out, such as head.*; may be repeated"
    _add_fact(command, "ignore", metavar="PATTERN", help=patterns)
    _add_fact(command, "base", metavar="CHECKPOINT", help="the checkpoint that an adapter is merged into")
    command.fixed["overrides"] = []


def _add_fact(command: Command, name: str, **settings: Any) -> None:
    command.add_argument(_flag(name), action=Fact, default=argparse.SUPPRESS, group=FACTS_HEADING, **settings)


def add_verification(command: Command) -> None:
    """Add the options of ``vitviz verify``."""
    add_checkpoint(command, "checkpoint")
    command.add_argument("--image", type=Path, default=None, help="a photograph (default: a bundled one)")
    size_help = "height and width in pixels, or one number, to compare besides the trained size; may be repeated"
    command.add_argument("--size", dest="sizes", type=size, action="append", default=[], metavar="HxW", help=size_help)


def add_images(command: Command, count: int, noun: str) -> None:
    """Add a folder of images, of which ``count`` are used by default; ``noun`` is what is written for each image."""
    command.add_argument("images", type=Path, help="folder with images, at any depth")
    count_help = "how many of them, chosen at random (default: %(default)s)"
    command.add_argument("--count", type=int, default=count, help=count_help)
    add_resolution(command)
    command.add_argument("-o", "--output", type=Path, default=None, help=f"JSON file for every {noun} of every image")
    add_checkpoint(command)


def add_method(command: Command, method: Method) -> None:
    """Add the options of a method and of the picture of its map."""
    add_pictures(command)
    command.add_argument("-o", "--output", type=file, default=None, help=OUTPUT_HELP)
    add_json(command, "the map, and the most probable classes,")
    for parameter in method.parameters:
        add_parameter(command, parameter)
    command.parameters = [parameter.name for parameter in method.parameters]
    if method.class_specific:
        _add_target(command)
    add_style(command)
    add_analysis(command)


def _add_target(command: Command) -> None:
    """Add the options for targets other than a single class."""
    against = "another class: the map shows what raises the score of its own class above the score of this one"
    command.add_argument("--against", default=None, metavar="CLASS", help=against)
    margin = "compare the map's class with the best of all others"
    command.add_argument("--margin", action="store_true", help=margin)
    command.add_argument("--text", default=None, help="what the map is about, for CLIP-type models, in words")
    like = "another image: what makes this one like it, with a classifier or without"
    command.add_argument("--like", type=Path, default=None, metavar="IMAGE", help=like)
    like_patch = "a patch of the image of --like, or of this one: what is like it"
    command.add_argument("--like-patch", type=patch, default=None, metavar="ROW,COLUMN", help=like_patch)


def add_style(command: Command) -> None:
    """Add the options for how a map is drawn."""
    command.add_argument("--colormap", choices=COLORMAPS, default=Style.colormap, help="default: %(default)s")
    command.add_argument(
        "--opacity", type=float, default=Style.opacity, help="opacity of the colours (default: %(default)s)"
    )
    command.add_argument("--smooth", action="store_true", help="interpolate between patches")
    command.add_argument("--grid", action="store_true", help="draw the patch grid")
    scale_help = "from values to colours (default: chosen from the values of the map)"
    command.add_argument("--scale", choices=SCALES, default=None, help=scale_help)
    percentiles_help = "between which a robust scale lies (default: {:g} {:g})".format(*PERCENTILES)
    command.add_argument(
        "--percentiles", type=float, nargs=2, default=PERCENTILES, metavar=("LOW", "HIGH"), help=percentiles_help
    )


def add_parameter(command: Command, parameter: Parameter) -> None:
    """Add the option of a method's parameter."""
    kind, choices = parameter.kind, parameter.kind.facts().get("choices")
    settings: dict[str, Any] = {"type": TYPES[kind.converter]} if kind.converter else {}
    settings |= {"choices": choices} if choices else {}
    command.add_argument(
        _flag(parameter.name), dest=parameter.name, default=parameter.default, **settings, help=parameter.option
    )


def add_resolution(command: Command) -> None:
    description = "shorter side of the model's input, a multiple of the patch (default: the trained one)"
    command.add_argument("--resolution", type=int, default=None, metavar="PIXELS", help=description)


def add_reading(command: Command) -> None:
    """Add how the values of pictures are read."""
    range_help = "values of black and white in pictures of 16 bits or floats, such as 0 4095 (default: of the format)"
    command.add_argument(
        "--value-range", type=float, nargs=2, default=None, metavar=("BLACK", "WHITE"), help=range_help
    )
    add_color_profile(command)


def add_color_profile(command: Command) -> None:
    profile_help = (
        "convert colours from a picture's profile to sRGB, or keep the stored values (default: as in training)"
    )
    command.add_argument("--color-profile", choices=COLOR_PROFILES, default=None, help=profile_help)


def add_fit(command: Command, noun: str = "picture") -> None:
    fit_help = f"how a {noun} fits the input (default: the checkpoint's own)"
    command.add_argument("--fit", choices=FITS, default=None, help=fit_help)


def add_max_bytes(command: Command, noun: str = "analysis") -> None:
    memory = f"the most memory that one {noun} may need (default: %(default)s)"
    command.add_argument("--max-bytes", type=int, default=MAX_BYTES, metavar="BYTES", help=memory)


def add_batch_size(command: Command, noun: str = "pictures") -> None:
    count = f"{noun} that are encoded together, or auto for what the memory allows (default: %(default)s)"
    command.add_argument("--batch-size", type=batch_size, default=AUTO, metavar="auto|COUNT", help=count)


def add_json(command: Command, content: str) -> None:
    command.add_argument("--json", action="store_true", help=f"print {content} as JSON, and nothing else")


def add_image(command: Command) -> None:
    """Add an image."""
    command.add_argument("image", type=file, metavar="IMAGE", help="path of the image, or - for the standard input")


def add_pictures(command: Command) -> None:
    """Add several images."""
    images = "paths of images, folders of them, or - for the standard input"
    command.add_argument("images", type=file, nargs="+", metavar="IMAGE", help=images)


def add_analysis(command: Command) -> None:
    """Add how images are opened and analysed."""
    add_fit(command)
    add_resolution(command)
    add_reading(command)
    add_max_bytes(command)
    add_checkpoint(command)


def add_training(command: Command) -> None:
    """Add all settings of a training run; a preset has the defaults."""
    command.add_argument(
        "--preset", choices=PRESETS, help="start from the settings of a run that is worth repeating; see below"
    )
    for option in fields(TrainingConfig):
        _add_training_option(command, option)
    named = "\n".join(f"  {name:<10}{_option_text(config)}" for name, config in PRESETS.items())
    command.epilog = f"presets:\n{named}"


def training_config(preset: str | None, **values: Any) -> TrainingConfig:
    """The settings of a preset, or the defaults, with some values replaced.

    Raises:
        ConfigError: a value is out of range.
    """
    return replace(PRESETS[preset] if preset is not None else TrainingConfig(), **values)


def _option_text(config: TrainingConfig) -> str:
    """A preset written as options, those that differ from the defaults."""
    settings, plain = vars(config), vars(TrainingConfig())
    return " ".join(_option_of_setting(name, value) for name, value in settings.items() if value != plain[name])


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _option_of_setting(name: str, value: Any) -> str:
    """A setting written as an option."""
    if isinstance(value, bool):
        return _flag(name if value else f"no_{name}")
    return f"{_flag(name)} {value}"


def _add_training_option(command: Command, option: Field[Any]) -> None:
    help = f"{option.metadata['help']} (default: {option.default})"
    action: Any = argparse.BooleanOptionalAction if isinstance(option.default, bool) else "store"
    kind: dict[str, Any] = {} if isinstance(option.default, bool) else {"type": type(option.default)}
    # An option that is not given must not override the preset.
    command.add_argument(
        _flag(option.name), dest=option.name, default=argparse.SUPPRESS, help=help, action=action, **kind
    )
