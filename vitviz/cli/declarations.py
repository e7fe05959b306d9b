"""The commands, each one record, with the tables that the library itself uses.

``python -m vitviz.cli.declarations`` stores them where :mod:`vitviz.cli.grammar` reads them without importing torch.
"""

from __future__ import annotations

from vitviz.attribution import METHODS
from vitviz.cli.declarations_of_asking import ask_command
from vitviz.cli.declarations_of_training import training_commands
from vitviz.cli.grammar import FILE, SIDES, Command, stored_text
from vitviz.cli.options import (
    ANALYSIS,
    CHECKPOINT,
    EXPLORED,
    FIT,
    IMAGE,
    MAP_GRAMMAR,
    MODELS,
    MOST_BYTES,
    ONE_CHECKPOINT,
    PICTURES,
    READING,
    RESOLUTION,
    SITE,
    STYLE,
    TOGETHER,
    command,
    json_of,
    of_method,
    of_parameter,
    option,
)
from vitviz.cli.probing import PARAMETERS as PROBE_PARAMETERS
from vitviz.datasets import ENGINES, READERS, Cluster
from vitviz.datasets.batch import LOCAL
from vitviz.datasets.work import WORKERS
from vitviz.evaluation.probes import PROBES
from vitviz.features import KINDS
from vitviz.images.sources import COLUMN
from vitviz.video.clips import CLIP_SUFFIXES
from vitviz.video.writing import CONTAINERS
from vitviz.visualization.heatmaps import FIGURE_SIDE

FEATURES = (
    option(
        "--layer",
        type="int",
        default=None,
        help="from 0, or from the end as -1 (default: the one that finds places of pictures again best)",
    ),
    option(
        "--of",
        choices=KINDS,
        default=KINDS[0],
        help="the output of the layer, or the keys, queries or values of its attention (default: %(default)s)",
    ),
)
BATCH = (
    option("source", help=f"{'; '.join(reader.name for reader in READERS)}"),
    option(
        "--column",
        default=COLUMN,
        help="the column of a Parquet file or data set with the pictures (default: %(default)s)",
    ),
    option(
        "--retry-failed",
        action="store_true",
        help="analyse again the pictures that could not be analysed before",
    ),
    TOGETHER,
    option(
        "--workers",
        type="int",
        default=WORKERS,
        help="threads that open pictures while the model runs (default: %(default)s)",
    ),
    MOST_BYTES,
    FIT,
    RESOLUTION,
)


def commands() -> list[Command]:
    """All commands, in the order of the list."""
    return [
        *map(of_method, METHODS.values()),
        command(
            "predict",
            "print the most probable classes of images",
            "predicting:run",
            PICTURES,
            option("--count", type="int", default=5, help="how many classes of each image (default: %(default)s)"),
            json_of("the classes"),
            *ANALYSIS,
        ),
        command(
            "flip",
            "find a few squares of each image without which the answer is another one",
            "flipping:run",
            PICTURES,
            option("--to", default=None, metavar="CLASS", help="the answer to reach (default: any other)"),
            option(
                "--margin",
                type="float",
                default=0.1,
                help="by how much its probability must be above the others' (default: %(default)s)",
            ),
            option("-o", "--output", type="file", default=None, help="picture of the squares; a folder for several"),
            json_of("the squares"),
            *ANALYSIS,
        ),
        command(
            "components",
            "draw what is alike in images, or in a clip, in one colour: the principal components of patches",
            "colouring:run",
            PICTURES,
            option(
                "-o",
                "--output",
                type="path",
                default=None,
                help="picture to write, all images side by side; .mp4 or .mkv for a clip (default: components.png)",
            ),
            *FEATURES,
            option("--foreground", action="store_true", help="colour the foreground alone, and leave the rest black"),
            option(
                "--query", type="query", metavar="ROW,COLUMN", help="draw what is like this patch of the first image"
            ),
            option("--opacity", type="float", default=1.0, help="opacity of the colours (default: %(default)s)"),
            option("--squares", action="store_true", help="one colour for each patch, without smooth passages"),
            *ANALYSIS,
        ),
        command(
            "features",
            "keep the vectors of the patches of a folder, a list or an archive of images, as Parquet",
            "batching:run_features",
            option(
                "-o",
                "--output",
                type="path",
                required=True,
                help="folder for the results; the same command resumes an interrupted run",
            ),
            *FEATURES,
            option("--mean", action="store_true", help="the mean of the patches alone, one vector for a picture"),
            *BATCH,
            *READING,
            *CHECKPOINT,
        ),
        command(
            "explore",
            "save an image's whole explorer, or one that runs the model, as one HTML file",
            "exploring:run",
            *EXPLORED,
            option(
                "-o",
                "--output",
                type="path",
                default=None,
                help="HTML to write (default: IMAGE.html, or the checkpoint's name, in the working folder)",
            ),
            option(
                "--link",
                default="",
                help="what it opens with: an address of the app, or its part behind '?', without model and picture",
            ),
            *ANALYSIS,
        ),
        command(
            "site",
            "write a page that runs models in the visitor's browser, as a folder for any static host",
            "exploring:run_site",
            *SITE,
        ),
        command(
            "probe",
            "look into a model: its tokens, attention and weights, for an image",
            "probing:run",
            IMAGE,
            option(
                "--probe",
                dest="names",
                action="append",
                choices=PROBES,
                default=None,
                help="one of the probes, by name; may be repeated (default: all that the model can have)",
            ),
            *map(of_parameter, PROBE_PARAMETERS.values()),
            option(
                "-o",
                "--output",
                type="path",
                default=None,
                help="NPZ file to write, with every measurement; - for the standard output",
            ),
            json_of("every measurement"),
            option(
                "--pictures",
                type="path",
                default=None,
                metavar="FOLDER",
                help="folder to write pictures into, one for each measurement that has one",
            ),
            *ANALYSIS,
            epilog="probes:\n"
            + "\n".join(f"  {record.name:<20} {record.interpretation}" for record in PROBES.values()),
        ),
        ask_command(),
        command(
            "batch",
            "analyse a folder, a list or an archive of images, and keep the results",
            "batching:run",
            *BATCH,
            option("output", type="path", help="folder for the results; the same command resumes an interrupted run"),
            option(
                "--map",
                dest="maps",
                action="append",
                type="map_request",
                default=[],
                metavar=MAP_GRAMMAR,
                help="a map of every picture, such as rollout or relevance:target=dog,start_layer=2; may be repeated",
            ),
            option(
                "--probe",
                dest="probes",
                action="append",
                choices=[name for name, record in PROBES.items() if record.requires != "model"],
                default=[],
                help="a probe of every picture; may be repeated",
            ),
            option("--pictures", action="store_true", help="also write an overlay of every map, as PNG"),
            option("--numbers", action="store_true", help="also write every picture's maps as an NPZ file"),
            option(
                "--masks",
                type="path",
                default=None,
                metavar="FOLDER",
                help="folder with a mask of each picture, of the same name with any ending; adds the share of each "
                "map inside it",
            ),
            option(
                "--box",
                type="box_corners",
                default=None,
                metavar="LEFT,TOP,RIGHT,BOTTOM",
                help="in place of masks, one box in all pictures, in pixels of each",
            ),
            option(
                "--explorers",
                action="store_true",
                help="also write the explorer of every picture, one HTML file each",
            ),
            option(
                "--gallery",
                action="store_true",
                help="also write RESULTS/gallery.html, one page with all pictures to sort; adds the probes that it "
                "sorts by",
            ),
            *READING,
            *CHECKPOINT,
            option(
                "--engine",
                choices=ENGINES,
                default=LOCAL,
                help=f"{'; '.join(f'{name}: {title}' for name, title in ENGINES.items())} (default: %(default)s)",
            ),
            option(
                "--ray-address",
                default=None,
                metavar="ADDRESS",
                help="address of a Ray cluster, auto or HOST:PORT (default: Ray starts on this machine)",
            ),
            option(
                "--actors",
                type="int",
                default=None,
                help="processes of Ray that hold the model (default: as many as there is room for)",
            ),
            option(
                "--actor-cpus",
                type="int",
                default=Cluster.cpus,
                metavar="CORES",
                help="cores of each of these processes (default: %(default)s)",
            ),
        ),
        command(
            "video",
            "write a video of a clip with the map of every frame",
            "filming:run",
            option("source", type="path", help=f"the clip: {', '.join(CLIP_SUFFIXES)}"),
            option("output", type="path", help=f"video to write: {' or '.join(CONTAINERS)}"),
            option(
                "--map",
                type="map_request",
                default="rollout",
                metavar=MAP_GRAMMAR,
                help="the map of every frame, such as relevance:target=dog,start_layer=2 (default: rollout)",
            ),
            option(
                "--smoothing-seconds",
                type="float",
                default=0.0,
                metavar="SECONDS",
                help="average maps over time by a Gaussian of this standard deviation (default: 0, not at all)",
            ),
            option(
                "--longest-side",
                type="int",
                default=FIGURE_SIDE,
                metavar="PIXELS",
                help="longer side of the picture in the video, at most, in pixels (default: %(default)s)",
            ),
            option(
                "--caption",
                action="boolean",
                default=True,
                help="draw the colour bar and the caption below the picture",
            ),
            option(
                "--numbers",
                type="path",
                default=None,
                metavar="FILE",
                help="NPZ file for the maps of all frames, before any averaging, and their times",
            ),
            *STYLE,
            TOGETHER,
            MOST_BYTES,
            FIT,
            RESOLUTION,
            *CHECKPOINT,
        ),
        command(
            "atlas",
            "summarise the results of a batch on one page",
            "batching:run_atlas",
            option("results", type="path", help="folder that vitviz batch wrote"),
            option("output", type="path", help="folder for the page, the figures and the numbers"),
            option(
                "--misclassified",
                action="store_true",
                help="only pictures whose most probable class is not the class that their folder names",
            ),
        ),
        command("models", "list the checkpoints that have a name", "checkpoints:run_models", json_of("the list")),
        command(
            "inspect", "say what a checkpoint is, and how that is known", "checkpoints:run_inspect", *ONE_CHECKPOINT
        ),
        command(
            "verify",
            "",
            "checkpoints:run_verify",
            *ONE_CHECKPOINT,
            option("--image", type="path", default=None, help="a photograph (default: a bundled one)"),
            option(
                "--size",
                dest="sizes",
                type="size",
                action="append",
                default=[],
                metavar=SIDES,
                help="height and width in pixels, or one number, to compare besides the trained size; may be repeated",
            ),
        ),
        command(
            "app",
            "start the app in the browser",
            "starting:run",
            MODELS,
            *CHECKPOINT,
            option("--host", help="address to listen on (default: GRADIO_SERVER_NAME, or 127.0.0.1)"),
            option(
                "--port",
                type="int",
                default=None,
                help="port to listen on (default: GRADIO_SERVER_PORT, or the first free from 7860)",
            ),
        ),
        *training_commands(),
        command(
            "completion",
            "print what completes commands and options in a shell",
            "completion:run",
            option(
                "shell",
                choices=("bash", "zsh"),
                help='the shell, such as in: eval "$(vitviz completion bash)" in ~/.bashrc',
            ),
        ),
    ]


if __name__ == "__main__":
    FILE.write_text(stored_text(commands()), encoding="utf-8")
