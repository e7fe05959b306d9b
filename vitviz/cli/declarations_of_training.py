"""The commands that train a model, and measure it on a folder."""

from __future__ import annotations

from vitviz.cli.grammar import Command
from vitviz.cli.options import (
    CHECKPOINT,
    COLOR_PROFILE,
    METHOD_CHOICE,
    command,
    folder,
    option,
    preset_text,
    training_options,
)
from vitviz.training.presets import PRESETS


def training_commands() -> list[Command]:
    """The commands, in the order of the list."""
    return [
        command(
            "evaluate",
            "measure a checkpoint's accuracy on an image folder",
            "evaluating:run",
            option("images", type="path", help="folder with test/CLASS/IMAGE, of all classes or some"),
            *CHECKPOINT,
            option(
                "--class",
                dest="labels",
                action="append",
                default=None,
                metavar="CLASS",
                help="classes to measure together as well; may be repeated",
            ),
            COLOR_PROFILE,
        ),
        command(
            "evaluate-methods",
            "measure how faithful every method's maps are, on a folder",
            "measuring:run_evaluate_methods",
            *folder(200, "area"),
            METHOD_CHOICE,
        ),
        command(
            "describe-heads",
            "measure how far and how widely every head looks, on a folder",
            "measuring:run_describe_heads",
            *folder(200, "measure"),
            option("--picture", type="path", default=None, help="figure to write: PNG, SVG or PDF"),
        ),
        command(
            "evaluate-attention",
            "measure how much attention lies on the object, on a folder of photographs",
            "measuring:run_evaluate_attention",
            *folder(1000, "head"),
        ),
        command(
            "check-methods",
            "see whether the maps change when weights are shuffled",
            "measuring:run_check_methods",
            *folder(50, "correlation"),
            METHOD_CHOICE,
        ),
        command(
            "train",
            "train a Vision Transformer on an image folder",
            "training:run",
            option("images", type="path", help="folder with train/CLASS/IMAGE and test/CLASS/IMAGE"),
            option("output", type="path", help="folder for checkpoint, logs and what a resume needs"),
            option(
                "--snapshots",
                type="int",
                default=12,
                help="number of snapshots to save, from the first step to the last (default: %(default)s)",
            ),
            option(
                "--terms",
                default="",
                metavar="TEXT",
                help="licence terms of the weights, written to the checkpoint's card",
            ),
            *training_options(),
            epilog="presets:\n" + "\n".join(f"  {name:<10}{preset_text(config)}" for name, config in PRESETS.items()),
        ),
    ]
