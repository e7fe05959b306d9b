"""The options that several commands have, and those of tables: of methods, families and settings of a training run."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.attention.precision import PRECISIONS
from vitviz.attribution import METHODS
from vitviz.attribution.methods import Method
from vitviz.attribution.parameters import Parameter, Switch
from vitviz.cli.grammar import AUTO, SIDES, Command, Option
from vitviz.images.colours import COLOR_PROFILES
from vitviz.images.preprocessing import FITS
from vitviz.training.presets import PRESETS, TrainingConfig
from vitviz.visualization.colormaps import COLORMAPS
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.scales import PERCENTILES, SCALES
from vitviz.weights import BUNDLED
from vitviz.weights.families import FAMILIES
from vitviz.weights.overrides import CHOICES, OVERRIDES

MAP_GRAMMAR = "METHOD[:NAME=VALUE,…]"
# What the user may state of a checkpoint whose file does not; --ignore is beside them.
FACTS: dict[str, dict[str, Any]] = {
    "heads": {"metavar": "COUNT", "help": "attention heads of a layer"},
    "image_size": {"metavar": SIDES, "help": "trained size in pixels"},
    "patch_size": {"metavar": SIDES, "help": "size of a patch in pixels"},
    "activation": {"help": "activation function of the MLPs"},
    "pooling": {"help": "what the classifier reads"},
    "final_norm": {"help": "place of the last LayerNorm"},
    "position_rule": {"help": "rule by which position embeddings are resized"},
    "normalisation": {"help": "mean and standard deviation of the pixels"},
    "probability": {"help": "what the classifier's outputs are"},
    "norm_epsilon": {"metavar": "NUMBER", "help": "epsilon of the LayerNorms"},
    "architecture": {"metavar": "NAME", "help": "timm's name of the architecture"},
    "labels": {"metavar": "NAMES", "help": "names of the classes from 0 on, separated by commas"},
}


def option(*flags: str, **settings: Any) -> Option:
    """An option, or an argument without a flag, as :meth:`argparse.ArgumentParser.add_argument` takes it.

    ``group`` is the heading under which its help stands.
    """
    return list(flags), settings | ({"choices": list(settings["choices"])} if "choices" in settings else {})


def fact(name: str, **settings: Any) -> Option:
    """An option for what the user states of a checkpoint."""
    return option(
        flag(name),
        action="fact",
        dest="overrides",
        default=[],
        group="what the checkpoint does not state",
        **settings,
    )


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def of_parameter(parameter: Parameter) -> Option:
    """The option of a method's or a probe's parameter."""
    kind, choices = parameter.kind, parameter.kind.facts().get("choices")
    settings: dict[str, Any] = {"type": kind.converter} if kind.converter else {}
    settings |= {"choices": choices} if choices else {"action": "store_true"} if isinstance(kind, Switch) else {}
    return option(
        flag(parameter.name), dest=parameter.name, default=parameter.default, **settings, help=parameter.option
    )


# Options that several commands have.

CHECKPOINT_HELP = "a name (see vitviz models), hf:OWNER/NAME, timm:NAME, open_clip:NAME/WEIGHTS, or a file or folder"
FACT_OPTIONS = (
    option(
        "--family",
        default=None,
        help=f"vitviz's own layout, if its keys do not tell it: {', '.join(each.name for each in FAMILIES)}",
    ),
    *(fact(name, **FACTS[name] | ({"choices": CHOICES[name]} if name in CHOICES else {})) for name in OVERRIDES),
    fact("ignore", metavar="PATTERN", help="keys to leave out, such as head.*; may be repeated"),
)
ONE_CHECKPOINT = (option("checkpoint", type="file", help=CHECKPOINT_HELP), *FACT_OPTIONS)
DEVICE = option("--device", default="cpu", help="where the model runs, such as cuda (default: %(default)s)")
CHECKPOINT = (
    option("--checkpoint", type="file", default=BUNDLED[0], help=f"{CHECKPOINT_HELP} (default: %(default)s)"),
    DEVICE,
    option(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="number format in which the layers compute (default: %(default)s)",
    ),
    *FACT_OPTIONS,
)
MODELS = option(
    "models",
    type="file",
    nargs="*",
    default=[],
    metavar="MODEL",
    help="what it opens with, instead of --checkpoint, and further models, which its visitors may choose",
)
FIT = option(
    "--fit",
    choices=FITS,
    default=None,
    help="how a picture becomes the model's input: squash stretches it, crop cuts out its centre, native has all of it "
    "in its own shape (default: the checkpoint's own)",
)
RESOLUTION = option(
    "--resolution",
    type="int",
    default=None,
    metavar="PIXELS",
    help="shorter side of the model's input, a multiple of the patch (default: the trained one); of the same area in "
    "another shape for --fit native",
)
MOST_BYTES = option(
    "--max-bytes",
    type="int",
    default=MAX_BYTES,
    metavar="BYTES",
    help="the most memory for what is analysed at once (default: %(default)s)",
)
TOGETHER = option(
    "--batch-size",
    type="batch_size",
    default=AUTO,
    metavar="auto|COUNT",
    help="pictures or frames that are encoded together, or auto for what the memory allows (default: %(default)s)",
)
COLOR_PROFILE = option(
    "--color-profile",
    choices=COLOR_PROFILES,
    default=None,
    help="convert colours from a picture's profile to sRGB, or keep the stored values (default: as in training)",
)
READING = (
    option(
        "--value-range",
        type="float",
        nargs=2,
        default=None,
        metavar=("BLACK", "WHITE"),
        help="values of black and white in pictures of 16 bits or floats, such as 0 4095 (default: of the format)",
    ),
    option(
        "--max-pixels",
        type="int",
        default=None,
        metavar="PIXELS",
        help="as PIL.Image.MAX_IMAGE_PIXELS: a picture of more than twice as many is refused (default: Pillow's own)",
    ),
    COLOR_PROFILE,
)
IMAGE = option("image", type="file", metavar="IMAGE", help="path of the image, or - for the standard input")
EXPLORED = (
    option(
        "image",
        type="file",
        nargs="?",
        default=None,
        metavar="IMAGE",
        help="path of the image, or - for the standard input; a page with its model needs none",
    ),
    option(
        "--with-model",
        action="store_true",
        help="a page that runs the model by itself, in the browser of whoever opens it, on pictures of theirs",
    ),
)
SITE = (
    option("models", type="file", nargs="+", metavar="MODEL", help=CHECKPOINT_HELP),
    option("output", type="path", metavar="FOLDER", help="new folder to write"),
    *FACT_OPTIONS,
)
PICTURES = option(
    "images",
    type="file",
    nargs="+",
    metavar="IMAGE",
    help="paths of images, folders of them, or - for the standard input",
)
STYLE = (
    option("--colormap", choices=COLORMAPS, default=Style.colormap, help="default: %(default)s"),
    option("--opacity", type="float", default=Style.opacity, help="opacity of the colours (default: %(default)s)"),
    option("--smooth", action="store_true", help="interpolate between patches"),
    option("--grid", action="store_true", help="draw the patch grid"),
    option(
        "--scale",
        choices=SCALES,
        default=None,
        help="from values to colours (default: chosen from the values of the map)",
    ),
    option(
        "--percentiles",
        type="float",
        nargs=2,
        default=None,
        metavar=("LOW", "HIGH"),
        help="between which a robust scale lies, which they ask for (default: {:g} {:g})".format(*PERCENTILES),
    ),
)
TARGET = (
    option(
        "--against",
        default=None,
        metavar="CLASS",
        help="another class: the map shows what raises the score of its own class above the score of this one",
    ),
    option("--margin", action="store_true", help="compare the map's class with the best of all others"),
    option("--text", default=None, help="what the map is about, for CLIP-type models, in words"),
    option(
        "--like",
        type="path",
        default=None,
        metavar="IMAGE",
        help="another image: what makes this one like it, with a classifier or without",
    ),
    option(
        "--like-patch",
        type="patch",
        default=None,
        metavar="ROW,COLUMN",
        help="a patch of the image of --like, or of this one: what is like it",
    ),
)
METHOD_CHOICE = option(
    "--method",
    dest="methods",
    action="append",
    choices=METHODS,
    help="measure this method alone; may be given several times (default: all that can serve the model)",
)


def json_of(content: str) -> Option:
    return option("--json", action="store_true", help=f"print {content} as JSON, and nothing else")


ANALYSIS = (FIT, RESOLUTION, *READING, MOST_BYTES, *CHECKPOINT)


def folder(count: int, noun: str) -> tuple[Option, ...]:
    """A folder of images, of which ``count`` are used by default; ``noun`` is what is written for each image."""
    return (
        option("images", type="path", help="folder with images, at any depth"),
        option("--count", type="int", default=count, help="how many of them, chosen at random (default: %(default)s)"),
        RESOLUTION,
        option("-o", "--output", type="path", default=None, help=f"JSON file for every {noun} of every image"),
        *CHECKPOINT,
    )


def command(name: str, help: str, run: str, *options: Option, **settings: Any) -> Command:
    """A command, which may be quiet."""
    quiet = option("-q", "--quiet", action="store_true", help="print results and errors alone, and no bars")
    return Command(name, help, run, arguments=[*options, quiet], **settings)


def of_method(method: Method) -> Command:
    """The command of a method."""
    return command(
        method.name.replace("_", "-"),
        f"save maps of images: {method.title}",
        "maps:run",
        PICTURES,
        option(
            "-o",
            "--output",
            type="file",
            default=None,
            help="picture to write, .npz for its numbers, - for the standard output; a folder for several pictures "
            "(default: IMAGE.METHOD.png in the working folder)",
        ),
        json_of("the map, and the most probable classes,"),
        *map(of_parameter, method.parameters),
        *(TARGET if method.class_specific else ()),
        *STYLE,
        *ANALYSIS,
        fixed={"method": method.name},
        epilog=method.interpretation,
        parameters=[parameter.name for parameter in method.parameters],
    )


def training_options() -> tuple[Option, ...]:
    """All settings of a training run; a preset has the defaults, which an option that is not given leaves."""
    options = [
        option("--preset", choices=PRESETS, help="start from the settings of a run that is worth repeating; see below")
    ]
    for setting in fields(TrainingConfig):
        is_switch = isinstance(setting.default, bool)
        kind: dict[str, Any] = {"action": "boolean"} if is_switch else {"type": type(setting.default).__name__}
        options.append(
            option(
                flag(setting.name),
                dest=setting.name,
                default=None,
                help=f"{setting.metadata['help']} (default: {setting.default})",
                **kind,
            )
        )
    return tuple(options)


def preset_text(config: TrainingConfig) -> str:
    """A preset written as options, those that differ from the defaults."""
    changed = vars(config).items() - vars(TrainingConfig()).items()
    texts = {
        name: flag(name if value else f"no_{name}") if isinstance(value, bool) else f"{flag(name)} {value}"
        for name, value in changed
    }
    return " ".join(texts[name] for name in vars(config) if name in texts)
