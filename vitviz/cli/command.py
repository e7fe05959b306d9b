"""The `vitviz` command."""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NoReturn

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import analyze
from vitviz.attention.precision import Precision
from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.cli.batching import add_atlas, add_batch
from vitviz.cli.batching import run as run_batch_command
from vitviz.cli.checkpoints import load_with_bar, read_with_bar
from vitviz.cli.evaluating import add_evaluate
from vitviz.cli.filming import add_video
from vitviz.cli.filming import run as run_video_command
from vitviz.cli.measuring import add_measurements
from vitviz.cli.options import (
    add_checkpoint,
    add_image,
    add_method,
    add_training,
    add_verification,
    training_config,
)
from vitviz.cli.output import LINE_CHARS, check_output, in_working_folder, print_in_any_encoding, write_whole
from vitviz.cli.probing import PARAMETERS, add_probe, run_probes
from vitviz.cli.targets import TargetOptions
from vitviz.errors.extras import extra
from vitviz.errors.kinds import VitvizError
from vitviz.errors.messages import did_you_mean, listing
from vitviz.images.colours import ColorProfile
from vitviz.images.preprocessing import Fit
from vitviz.images.sources import ValueRange
from vitviz.progress import Progress
from vitviz.visualization.colormaps import ColormapName
from vitviz.visualization.heatmaps import Style
from vitviz.visualization.scales import ScaleName
from vitviz.weights import BUNDLED, ZOO, Model, is_cached, read, resources
from vitviz.weights.verify import PHOTO, verify


class _Parser(argparse.ArgumentParser):
    """A parser whose errors suggest the command or choice closest to a misspelt one."""

    def error(self, message: str) -> NoReturn:
        match = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        legal = [name.strip(" '") for name in match[2].split(",")] if match else []
        super().error(message + did_you_mean(match[1] if match else None, legal))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0 for success, 1 for a checkpoint that is not verified or images of a batch that could not be analysed, 2 for an
    error, which is one line, 130 for an interrupt, 141 if whoever reads the output ends before it does.
    """
    print_in_any_encoding()
    options = vars(_parser().parse_args(arguments))
    run = options.pop("run")
    try:
        status: int | None = run(**options)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has enough. Python would complain when it flushes the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    # An OSError, such as a full disk or a port in use, is described well enough by its message.
    except (VitvizError, OSError) as error:
        print(f"vitviz: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nvitviz: interrupted{RESUME_NOTES.get(run, '')}", file=sys.stderr)
        return 130
    return status or 0


def _parser() -> argparse.ArgumentParser:
    description = "See what a Vision Transformer attends to, on your own image."
    parser = _Parser("vitviz", description=description)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for method in METHODS.values():
        method_parser = commands.add_parser(
            method.name.replace("_", "-"),
            help=f"save a map of an image: {method.title}",
            epilog=method.interpretation,
        )
        add_image(method_parser)
        add_method(method_parser, method)
        method_parser.set_defaults(run=_run_method, method=method.name)

    explore_parser = commands.add_parser("explore", help="save an image's whole explorer as one HTML file")
    add_image(explore_parser)
    explore_parser.add_argument(
        "-o", "--output", type=Path, default=None, help="HTML to write (default: IMAGE.html in the working folder)"
    )
    link_help = "what it opens with: an address of the app, or its part behind '?', without model and picture"
    explore_parser.add_argument("--link", default="", help=link_help)
    explore_parser.set_defaults(run=_run_explore)

    probe_parser = commands.add_parser(
        "probe", help="look into a model: its tokens, attention and weights, for an image"
    )
    add_probe(probe_parser)
    probe_parser.set_defaults(run=_run_probe)

    batch_parser = commands.add_parser(
        "batch", help="analyse a folder, a list or an archive of images, and keep the results"
    )
    add_batch(batch_parser)

    video_parser = commands.add_parser("video", help="write a video of a clip with the map of every frame")
    add_video(video_parser)

    atlas_parser = commands.add_parser("atlas", help="summarise the results of a batch on one page")
    add_atlas(atlas_parser)

    models_parser = commands.add_parser("models", help="list the checkpoints that have a name")
    models_parser.set_defaults(run=_run_models)

    inspect_parser = commands.add_parser("inspect", help="say what a checkpoint is, and how that is known")
    add_checkpoint(inspect_parser, "checkpoint")
    inspect_parser.set_defaults(run=_run_inspect)

    verify_parser = commands.add_parser("verify", help="compare a checkpoint with the package that it comes from")
    add_verification(verify_parser)
    verify_parser.set_defaults(run=_run_verify)

    app_parser = commands.add_parser("app", help="start the app in the browser")
    add_checkpoint(app_parser)
    app_parser.add_argument("--host", help="address to listen on (default: GRADIO_SERVER_NAME, or 127.0.0.1)")
    port_help = "port to listen on (default: GRADIO_SERVER_PORT, or the first free from 7860)"
    app_parser.add_argument("--port", type=int, default=None, help=port_help)
    app_parser.set_defaults(run=_run_app)

    evaluate_parser = commands.add_parser("evaluate", help="measure a checkpoint's accuracy on an image folder")
    add_evaluate(evaluate_parser)

    add_measurements(commands)

    train_parser = commands.add_parser("train", help="train a Vision Transformer on an image folder")
    train_parser.add_argument("images", type=Path, help="folder with train/CLASS/IMAGE and test/CLASS/IMAGE")
    train_parser.add_argument("output", type=Path, help="folder for checkpoint, logs and what a resume needs")
    snapshots_help = "number of snapshots to save, from the first step to the last (default: %(default)s)"
    train_parser.add_argument("--snapshots", type=int, default=12, help=snapshots_help)
    resume_help = "compact.pt of a run of the same network on the same images, to go on from in a new output folder"
    train_parser.add_argument("--resume-from", type=Path, default=None, metavar="FILE", help=resume_help)
    terms_help = "licence terms of the weights, written to the checkpoint's card"
    train_parser.add_argument("--terms", default="", metavar="TEXT", help=terms_help)
    soft_labels_help = (
        "npz file with a teacher's probabilities, and features, of all training images (docs/training.md)"
    )
    train_parser.add_argument("--soft-labels", type=Path, default=None, metavar="FILE", help=soft_labels_help)
    add_training(train_parser)
    train_parser.set_defaults(run=_run_train)
    return parser


def _run_method(
    method: MethodName,
    image: str,
    output: Path | None,
    checkpoint: str,
    family: str | None,
    overrides: list[str],
    device: str,
    precision: Precision,
    fit: Fit | None,
    resolution: int | None,
    value_range: ValueRange | None,
    color_profile: ColorProfile | None,
    max_bytes: int,
    colormap: ColormapName,
    opacity: float,
    smooth: bool,
    grid: bool,
    scale: ScaleName | None,
    percentiles: Sequence[float],
    **parameters: Any,
) -> None:
    from tqdm import tqdm

    output = output or in_working_folder(image, f".{method}.png")
    # Check the path before the model is loaded.
    check_output(output, image)
    low, high = percentiles
    style = Style(colormap, opacity, smooth, grid, scale=scale, percentiles=(low, high))
    target_options = TargetOptions.of(parameters) if METHODS[method].class_specific else None
    model = load_with_bar(checkpoint, family, overrides, device, precision)
    settings: dict[str, Any] = {"fit": fit, "resolution": resolution, "max_bytes": max_bytes}
    settings |= {"value_range": value_range, "color_profile": color_profile}
    analysis = _analysis(image, model, **settings)
    if target_options is not None:
        parameters["target"] = target_options.choice(analysis, **settings)
    # The delay hides the bar until the first report, which knows the total.
    with tqdm(desc=METHODS[method].title, disable=not METHODS[method].reports, delay=1e-9) as bar:

        def report(state: Progress) -> None:
            bar.total = state.total
            bar.update(state.done - bar.n)

        heatmap = analysis.map(method, report=report, **parameters)
    query = parameters.get("query")
    heatmap.save(output, style, mark=query if isinstance(query, tuple) else None)
    print(f"{heatmap.caption(style)}\nwritten to {output}")


def _analysis(image: str, model: Model, fit: Fit | None = None, **settings: Any) -> Analysis:
    """The analysis of an image; prints what opening it assumed."""
    analysis = analyze(image, model, fit, **settings)
    for sentence in analysis.prepared.assumptions:
        print(f"{Path(image).name}: assumed: {sentence}")
    return analysis


def _run_explore(
    image: str,
    output: Path | None,
    link: str,
    fit: Fit | None,
    resolution: int | None,
    value_range: ValueRange | None,
    color_profile: ColorProfile | None,
    max_bytes: int,
    **load_options: Any,
) -> None:
    output = output or in_working_folder(image, ".html")
    check_output(output, image)
    settings: dict[str, Any] = {"value_range": value_range, "color_profile": color_profile, "max_bytes": max_bytes}
    analysis = _analysis(image, load_with_bar(**load_options), fit, resolution=resolution, **settings)
    from vitviz.ui.explorer import whole_page

    name, source = Path(image).name, load_options["checkpoint"]
    link = link.partition("?")[2] if "://" in link else link
    page = whole_page(analysis, name, source=source, name=name, fit=fit or "", resolution=resolution, link=link)
    write_whole(output, lambda file: file.write(page.encode()))
    print(f"All layers and heads, {len(page) / 1e6:.1f} MB\nwritten to {output}")


def _run_probe(
    image: str,
    names: list[str] | None,
    output: Path | None,
    pictures: Path | None,
    fit: Fit | None,
    resolution: int | None,
    value_range: ValueRange | None,
    color_profile: ColorProfile | None,
    max_bytes: int,
    **options: Any,
) -> None:
    if output is not None:
        check_output(output, image)
    parameters = {name: options.pop(name) for name in PARAMETERS}
    settings: dict[str, Any] = {"value_range": value_range, "color_profile": color_profile, "max_bytes": max_bytes}
    analysis = _analysis(image, load_with_bar(**options), fit, resolution=resolution, **settings)
    run_probes(analysis, names, output, pictures, **parameters)


def _run_models() -> None:
    family = known_for = ""
    for model in ZOO.values():
        if model.family != family:
            print(f"\n{model.family}")
        # Print a description that several models of a family share only once.
        if (model.family, model.known_for) != (family, known_for):
            print(textwrap.fill(model.known_for, LINE_CHARS, initial_indent="  ", subsequent_indent="  "))
        family, known_for = model.family, model.known_for
        cost = "downloaded" if is_cached(model.repository) else f"{model.megabytes:,.0f} MB to download"
        print(f"  {model.name:<24} {model.title}, {model.input_size} pixels, {model.licence}, {cost}")
        print(f"  {'':<24} hf:{model.repository}")
    print("\nBundled")
    for name in BUNDLED:
        bundled = read(name).model
        print(
            f"  {name:<24} ViT trained by vitviz, {len(bundled.labels)} classes, {bundled.preprocessing.height} pixels"
        )


def _run_inspect(checkpoint: str, family: str | None, overrides: list[str]) -> None:
    reading = read_with_bar(checkpoint, family, overrides)
    # Group the keys, since hundreds may be ignored for few reasons.
    ignored_keys: dict[str, list[str]] = {}
    for key, reason in reading.ignored.items():
        ignored_keys.setdefault(reason, []).append(key)
    rows = [
        (check.fact, check.value, f"{'assumed: ' * check.assumed}{check.source}")
        for check in reading.checks
        if check.fact != "not needed"
    ]
    rows += [("not needed", listing(keys, 2), reason) for reason, keys in ignored_keys.items()]
    print(f"{reading.model.name}: {reading.model.parameters:,} parameters\n")
    _print_table([("fact", "value", "how it is known"), *rows])
    print(f"\nEvery {'other ' * bool(ignored_keys)}tensor of the file has its place, and the right shape.")
    if reading.model.assumptions:
        print("No file states what is assumed; --fact NAME=VALUE corrects it.")


def _run_verify(
    checkpoint: str, family: str | None, overrides: list[str], image: Path | None, sizes: list[tuple[int, int]]
) -> int:
    verification = verify(read_with_bar(checkpoint, family, overrides), image or resources("assets") / PHOTO, sizes)
    print(f"{verification.name} beside {verification.reference}\n")
    _print_table(verification.rows)
    for subject in verification.not_compared:
        print(f"not compared: {subject}")
    print(f"\n{'Every number matches' if verification.exact else 'Not every number matches'} the package's.")
    return 0 if verification.exact else 1


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    """Print three columns; long cells are wrapped."""
    first = max(len(row[0]) for row in rows)
    second = min(max(len(row[1]) for row in rows), 41)
    widths = (first, second, LINE_CHARS - first - second - 4)
    for row in rows:
        cells = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
        for fact, value, source in zip_longest(*cells, fillvalue=""):
            print(f"{fact:<{first}}  {value:<{second}}  {source}".rstrip())


def _run_app(host: str | None, port: int | None, **load_options: Any) -> None:
    model = load_with_bar(**load_options)
    # Importing the app takes seconds, so a wrong path or option is refused first.
    from vitviz.ui import build_demo, serve
    from vitviz.ui.hosting import prepare
    from vitviz.ui.server.settings import ServerSettings

    server_settings = ServerSettings.of()
    prepare(server_settings.threads)
    serve(build_demo(model, server_settings), server_settings, server_name=host, server_port=port)


def _run_train(
    images: Path,
    output: Path,
    snapshots: int,
    resume_from: Path | None,
    terms: str,
    soft_labels: Path | None,
    **settings: Any,
) -> None:
    with extra("train"):
        from vitviz.training.loop import CHECKPOINT, train
    _, accuracy = train(images, output, training_config(**settings), snapshots, resume_from, terms, soft_labels)
    print(f"top-1 accuracy {accuracy.top1:.2%} of {accuracy.images:,} test images")
    print(f"written to {output / CHECKPOINT}")


# Printed after an interrupt, by command.
RESUME_NOTES: dict[Callable[..., Any], str] = {
    _run_train: "; the same command continues after the last whole epoch",
    run_batch_command: "; the same command computes what is missing",
    run_video_command: "; the same command computes what is missing",
}
