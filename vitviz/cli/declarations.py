"""The commands, declared with the tables that the library itself uses.

``python -m vitviz.cli.declarations`` stores them where :mod:`vitviz.cli.grammar` reads them without importing torch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vitviz.attribution import METHODS
from vitviz.attribution.methods import Method
from vitviz.cli.batching import add_atlas, add_batch
from vitviz.cli.evaluating import add_evaluate
from vitviz.cli.filming import add_video
from vitviz.cli.grammar import Command, write
from vitviz.cli.measuring import add_attention_images, add_check, add_heads, add_methods
from vitviz.cli.options import (
    add_analysis,
    add_checkpoint,
    add_image,
    add_json,
    add_method,
    add_pictures,
    add_training,
    add_verification,
)
from vitviz.cli.probing import add_probe

RESUMES = "computes what is missing"


def commands() -> list[Command]:
    """All commands, in the order of the list."""
    table: tuple[tuple[Command, Callable[[Command], None]], ...] = (
        (Command("predict", "print the most probable classes of images", "predicting:run"), _add_predict),
        (Command("explore", "save an image's whole explorer as one HTML file", "exploring:run"), _add_explore),
        (
            Command("probe", "look into a model: its tokens, attention and weights, for an image", "probing:run"),
            add_probe,
        ),
        (
            Command(
                "batch",
                "analyse a folder, a list or an archive of images, and keep the results",
                "batching:run",
                resumes=RESUMES,
            ),
            add_batch,
        ),
        (
            Command("video", "write a video of a clip with the map of every frame", "filming:run"),
            add_video,
        ),
        (Command("atlas", "summarise the results of a batch on one page", "batching:run_atlas"), add_atlas),
        (Command("models", "list the checkpoints that have a name", "checkpoints:run_models"), _add_models),
        (
            Command("inspect", "say what a checkpoint is, and how that is known", "checkpoints:run_inspect"),
            lambda command: add_checkpoint(command, "checkpoint"),
        ),
        (
            Command("verify", "compare a checkpoint with the package that it comes from", "checkpoints:run_verify"),
            add_verification,
        ),
        (Command("app", "start the app in the browser", "starting:run"), _add_app),
        (Command("evaluate", "measure a checkpoint's accuracy on an image folder", "evaluating:run"), add_evaluate),
        (
            Command(
                "evaluate-methods",
                "measure how faithful every method's maps are, on a folder",
                "measuring:run_evaluate_methods",
            ),
            add_methods,
        ),
        (
            Command(
                "describe-heads",
                "measure how far and how widely every head looks, on a folder",
                "measuring:run_describe_heads",
            ),
            add_heads,
        ),
        (
            Command(
                "evaluate-attention",
                "measure how much attention lies on the object, on a folder of photographs",
                "measuring:run_evaluate_attention",
            ),
            add_attention_images,
        ),
        (
            Command(
                "check-methods", "see whether the maps change when weights are shuffled", "measuring:run_check_methods"
            ),
            add_check,
        ),
        (
            Command(
                "train",
                "train a Vision Transformer on an image folder",
                "training:run",
                resumes="continues after the last whole epoch",
            ),
            _add_train,
        ),
        (
            Command("completion", "print what completes commands and options in a shell", "completion:run"),
            _add_completion,
        ),
    )
    declared = [_of_method(method) for method in METHODS.values()]
    for command, add in table:
        add(command)
        declared.append(command)
    for command in declared:
        command.add_argument("-q", "--quiet", action="store_true", help="print results and errors alone, and no bars")
    return declared


def _of_method(method: Method) -> Command:
    command = Command(
        method.name.replace("_", "-"),
        f"save maps of images: {method.title}",
        "maps:run",
        {"method": method.name},
        epilog=method.interpretation,
    )
    add_method(command, method)
    return command


def _add_predict(command: Command) -> None:
    add_pictures(command)
    command.add_argument("--count", type=int, default=5, help="how many classes of each image (default: %(default)s)")
    add_json(command, "the classes")
    add_analysis(command)


def _add_explore(command: Command) -> None:
    add_image(command)
    command.add_argument(
        "-o", "--output", type=Path, default=None, help="HTML to write (default: IMAGE.html in the working folder)"
    )
    link_help = "what it opens with: an address of the app, or its part behind '?', without model and picture"
    command.add_argument("--link", default="", help=link_help)
    add_analysis(command)


def _add_models(command: Command) -> None:
    add_json(command, "the list")


def _add_app(command: Command) -> None:
    add_checkpoint(command)
    command.add_argument("--host", help="address to listen on (default: GRADIO_SERVER_NAME, or 127.0.0.1)")
    port_help = "port to listen on (default: GRADIO_SERVER_PORT, or the first free from 7860)"
    command.add_argument("--port", type=int, default=None, help=port_help)


def _add_train(command: Command) -> None:
    command.add_argument("images", type=Path, help="folder with train/CLASS/IMAGE and test/CLASS/IMAGE")
    command.add_argument("output", type=Path, help="folder for checkpoint, logs and what a resume needs")
    snapshots_help = "number of snapshots to save, from the first step to the last (default: %(default)s)"
    command.add_argument("--snapshots", type=int, default=12, help=snapshots_help)
    terms_help = "licence terms of the weights, written to the checkpoint's card"
    command.add_argument("--terms", default="", metavar="TEXT", help=terms_help)
    add_training(command)


def _add_completion(command: Command) -> None:
    use = 'the shell, such as in: eval "$(vitviz completion bash)" in ~/.bashrc'
    command.add_argument("shell", choices=("bash", "zsh"), help=use)


if __name__ == "__main__":
    write(commands())
