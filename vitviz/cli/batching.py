"""The commands ``vitviz batch``, which writes a table of many pictures, and ``vitviz atlas``, which summarises it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitviz.analysis.encoder import MAX_BYTES
from vitviz.attribution import METHODS
from vitviz.attribution.parameters import Parameter
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.options import add_checkpoint, add_reading, add_resolution, argument_of
from vitviz.datasets import (
    ENGINES,
    NUMBERS,
    READERS,
    BatchRequest,
    Cluster,
    Item,
    MapRequest,
    Summary,
    Writer,
    overlays,
    read_atlas,
    read_items,
    run_batch,
)
from vitviz.datasets.engines import LOCAL, RAY
from vitviz.datasets.gallery import EXPLORERS, GALLERY_PROBES, write_gallery
from vitviz.datasets.rows import PictureResult
from vitviz.datasets.work import WORKERS
from vitviz.datasets.writers import PathMaker
from vitviz.errors.arguments import word
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.probes import PROBES
from vitviz.images.colours import ColorProfile
from vitviz.images.kinds import left_out
from vitviz.images.preprocessing import FITS, Fit
from vitviz.images.sources import COLUMN, ValueRange
from vitviz.progress import Progress
from vitviz.system.atomic import atomic_write
from vitviz.visualization.heatmaps import Style

# A comma separates parameters only before NAME=, since commas also separate the row and column of a patch.
NEXT_PARAMETER = re.compile(r",(?=\w+=)")
SOME_FAILED = 1
AUTO = "auto"
MAP_GRAMMAR = "METHOD[:NAME=VALUE,…]"


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``vitviz batch``."""
    parser.add_argument("source", help=f"{'; '.join(reader.name for reader in READERS)}")
    parser.add_argument("output", type=Path, help="folder for the results; the same command resumes an interrupted run")
    maps = "a map of every picture, such as rollout or relevance:target=dog,start_layer=2; may be repeated"
    parser.add_argument(
        "--map", dest="maps", action="append", type=map_request, default=[], metavar=MAP_GRAMMAR, help=maps
    )
    probe_names = [name for name, record in PROBES.items() if record.requires != "model"]
    probes = f"a probe of every picture; may be repeated: {', '.join(probe_names)}"
    parser.add_argument("--probe", dest="probes", action="append", default=[], metavar="PROBE", help=probes)
    parser.add_argument("--pictures", action="store_true", help="also write an overlay of every map, as PNG")
    parser.add_argument("--numbers", action="store_true", help="also write every picture's maps as an NPZ file")
    column = "the column of a Parquet file or data set with the pictures (default: %(default)s)"
    parser.add_argument("--column", default=COLUMN, help=column)
    parser.add_argument(
        "--explorers", action="store_true", help="also write the explorer of every picture, one HTML file each"
    )
    gallery = "also write RESULTS/gallery.html, one page with all pictures to sort; adds the probes that it sorts by"
    parser.add_argument("--gallery", action="store_true", help=gallery)
    retry = "analyse again the pictures that could not be analysed before"
    parser.add_argument("--retry-failed", action="store_true", help=retry)
    size = "pictures that are encoded together, or auto for what the memory allows (default: %(default)s)"
    parser.add_argument("--batch-size", type=batch_size_of, default=AUTO, metavar="auto|COUNT", help=size)
    threads = "threads that open pictures while the model runs (default: %(default)s)"
    parser.add_argument("--workers", type=int, default=WORKERS, help=threads)
    memory = "the most memory that one batch may need (default: %(default)s)"
    parser.add_argument("--max-bytes", type=int, default=MAX_BYTES, metavar="BYTES", help=memory)
    parser.add_argument(
        "--fit", choices=FITS, default=None, help="how a picture fits the input (default: the checkpoint's own)"
    )
    add_resolution(parser)
    add_reading(parser)
    add_checkpoint(parser)
    engines = "; ".join(f"{engine.name}: {engine.title}" for engine in ENGINES.values())
    parser.add_argument("--engine", choices=ENGINES, default=LOCAL.name, help=f"{engines} (default: %(default)s)")
    address = "address of a Ray cluster, auto or HOST:PORT (default: Ray starts on this machine)"
    parser.add_argument("--ray-address", default=None, metavar="ADDRESS", help=address)
    actors = "processes of Ray that hold the model (default: as many as there is room for)"
    parser.add_argument("--actors", type=int, default=None, help=actors)
    cores = "cores of each of these processes (default: %(default)s)"
    parser.add_argument("--actor-cpus", type=int, default=Cluster.cpus, metavar="CORES", help=cores)
    parser.set_defaults(run=run)


def map_request(text: str) -> MapRequest:
    """Parse a method with its parameters, written as :data:`MAP_GRAMMAR`.

    Raises:
        argparse.ArgumentTypeError: there is no such method or parameter, or a value is not legal for it.
    """
    method, _, assignments = text.partition(":")
    try:
        record = METHODS[word("method", method, METHODS)]
        parameters = {parameter.name: parameter for parameter in record.parameters}
        values = {}
        for assignment in NEXT_PARAMETER.split(assignments) if assignments else ():
            name, sign, value = assignment.partition("=")
            if not sign:
                raise MethodError(
                    f"{assignment!r} found; expected NAME=VALUE, such as {method}:{next(iter(parameters))}=…"
                )
            values[name] = _value(parameters[name], value) if name in parameters else value
        return MapRequest(record.name, values)
    except MethodError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _value(parameter: Parameter, text: str) -> Any:
    options = argument_of(parameter)
    try:
        value = options.get("type", str)(text)
    except (ValueError, argparse.ArgumentTypeError):
        raise MethodError(f"{parameter.name} = {text!r}: expected {parameter.help}") from None
    if "choices" in options and value not in options["choices"]:
        raise MethodError(f"{parameter.name} = {text!r}: expected one of {', '.join(map(str, options['choices']))}")
    return value


def run(
    source: str,
    output: Path,
    maps: list[MapRequest],
    probes: list[str],
    pictures: bool,
    numbers: bool,
    explorers: bool,
    gallery: bool,
    retry_failed: bool,
    column: str,
    batch_size: int | str,
    workers: int,
    max_bytes: int,
    fit: Fit | None,
    resolution: int | None,
    value_range: ValueRange | None,
    color_profile: ColorProfile | None,
    engine: str,
    ray_address: str | None,
    actors: int | None,
    actor_cpus: int,
    device: str,
    **load_options: Any,
) -> int:
    """Run the batch; the exit status says whether some pictures failed."""
    # With Ray, the device is that of the workers; this machine may not have it.
    cluster = Cluster(ray_address, actors, actor_cpus, device if engine == RAY.name else Cluster.device)
    local_device = Cluster.device if engine == RAY.name else device
    # Check the source before the model is loaded, so that a wrong path fails fast.
    found = read_items(source, column)
    items: Iterable[Item] = found if found.reader.streams else list(found)
    # The gallery sorts by these probes.
    probes += [name for name in GALLERY_PROBES if gallery and name not in probes]
    model = load_with_bar(**load_options, device=local_device)
    request = BatchRequest(model, tuple(maps), tuple(probes), fit, resolution, value_range, color_profile)
    writers = [overlays(Style())] * pictures + [NUMBERS] * numbers
    if explorers:
        writers.append(_explorers(load_options["checkpoint"], fit, resolution))
    options: dict[str, Any] = {"max_bytes": max_bytes, "workers": workers, "writers": writers, "thumbnails": gallery}
    options |= {"engine": engine, "cluster": cluster, "retry_failed": retry_failed}
    summary = _with_bar(request, items, output, batch_size=None if batch_size == AUTO else batch_size, **options)
    _print(summary, output)
    # Workers of Ray read a streamed source themselves.
    if found.left_out_count and not (found.reader.streams and engine == RAY.name):
        print(left_out(found.left_out_count, found.left_out_names))
    if gallery:
        print(f"gallery: {write_gallery(output)}")
    return SOME_FAILED if summary.failed or summary.failed_before else 0


def batch_size_of(text: str) -> int | str:
    """Parse a number of pictures, or :data:`AUTO`."""
    return text if text == AUTO else int(text)


def _explorers(source: str, fit: Fit | None, resolution: int | None) -> Writer:
    """The writer of every picture's explorer."""
    from vitviz.ui.explorer import whole_page

    def write(result: PictureResult, make_path: PathMaker) -> None:
        name = Path(str(result.analysis.source)).name
        page = whole_page(result.analysis, name, source=source, name=name, fit=fit or "", resolution=resolution)
        with atomic_write(make_path("html")) as file:
            file.write(page.encode())

    return Writer(EXPLORERS, write, lambda maps: ["html"], whole_pictures=False)


def add_atlas(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``vitviz atlas``."""
    parser.add_argument("results", type=Path, help="folder that vitviz batch wrote")
    parser.add_argument("output", type=Path, help="folder for the page, the figures and the numbers")
    parser.set_defaults(run=run_atlas)


def run_atlas(results: Path, output: Path) -> None:
    """Write the atlas of a batch's results."""
    # Imported here, since it imports matplotlib.
    from vitviz.datasets.atlas_page import write_atlas

    atlas = read_atlas(results)
    print(f"atlas of {atlas.pictures:,} pictures: {write_atlas(atlas, output)}")


def _with_bar(request: BatchRequest, items: Iterable[Any], output: Path, **options: Any) -> Summary:
    from tqdm import tqdm

    with tqdm(desc="Pictures", unit=" pictures") as bar:

        def report(state: Progress) -> None:
            bar.total = state.total or None
            bar.update(state.done - bar.n)

        return run_batch(request, items, output, report=report, **options)


def _print(summary: Summary, output: Path) -> None:
    done = summary.analysed + summary.failed + summary.completed
    rate = f", {done / summary.seconds:.3g} a second" if done else ""
    skipped = f"; {summary.skipped:,} there before" if summary.skipped else ""
    if summary.failed_before:
        skipped += f", {summary.failed_before:,} of which could not be analysed"
    if summary.completed:
        skipped += f", {summary.completed:,} of which lacked files that are written now"
    failed = f"; {summary.failed:,} could not be analysed" if summary.failed else ""
    noun = "picture" if summary.analysed == 1 else "pictures"
    batch = "" if summary.batch_size is None else f", {summary.batch_size} at once"
    wait = ""
    if done and summary.wait_seconds is not None:
        wait = f"; the model waited {summary.wait_seconds / summary.seconds:.0%} of the time for pictures"
    print(f"{summary.analysed:,} {noun} analysed{rate}{batch}{wait}{failed}{skipped}\nwritten to {output / 'parts'}")
    unnamed = summary.failed + summary.failed_before - len(summary.errors)
    if summary.errors:
        print("not analysed (with --retry-failed again, see the column error):")
    for path, error in summary.errors.items():
        # The message often begins with the name of the file.
        print(f"  {path}: {error.removeprefix(f'{Path(path).name}: ')}")
    if unnamed > 0:
        print(f"  and {unnamed:,} more")
