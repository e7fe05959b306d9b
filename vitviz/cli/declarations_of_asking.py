"""The command of networks that write about pictures."""

from __future__ import annotations

from vitviz.attention.precision import PRECISIONS
from vitviz.cli.grammar import Command
from vitviz.cli.options import DEVICE, IMAGE, command, json_of, option
from vitviz.language.answers import WORD_MAPS
from vitviz.language.asking import MAX_NEW_TOKENS


def ask_command() -> Command:
    """``vitviz ask``."""
    return command(
        "ask",
        "ask a vision-language model about an image, and draw what it attends to for each word",
        "answering:run",
        IMAGE,
        option("question", help='about the image, such as "What is the animal doing?"'),
        option(
            "--model",
            required=True,
            metavar="FOLDER",
            help="folder of a generative vision-language model of transformers, or its name on the hub",
        ),
        DEVICE,
        option(
            "--precision",
            choices=PRECISIONS,
            default=None,
            help="number format in which the layers compute (default: that of the file)",
        ),
        option(
            "--map",
            choices=WORD_MAPS,
            default=WORD_MAPS[0],
            help="attention of the head that reads most, relevance or rollout of all layers, or hiding of squares of "
            "the image (default: %(default)s)",
        ),
        option(
            "--layer",
            type="int",
            default=None,
            help="of --map attention, counted from 0 among those that read the image (default: that of the best head)",
        ),
        option("--head", type="int", default=None, help="of this layer (default: the mean of all)"),
        option("--text", default=None, help="what it has to write, in place of its own answer"),
        option(
            "--tokens",
            type="int",
            default=MAX_NEW_TOKENS,
            metavar="COUNT",
            help="the most tokens of its answer (default: %(default)s)",
        ),
        option("-o", "--output", type="path", default=None, help="picture with a panel for each word"),
        json_of("the answer with a map for each word"),
    )
