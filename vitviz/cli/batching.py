"""The commands ``vitviz batch``, which writes a table of many pictures, and ``vitviz atlas``, which summarises it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitviz.attribution.methods import MethodName
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.picture_files import SOME_FAILED
from vitviz.cli.printing import reporting
from vitviz.datasets import (
    NUMBERS,
    BatchRequest,
    Cluster,
    FeatureRequest,
    MapRequest,
    Summary,
    Writer,
    overlays,
    read_atlas,
    read_items,
    run_batch,
)
from vitviz.datasets.batch import LOCAL, RAY
from vitviz.datasets.gallery import EXPLORERS, GALLERY_PROBES, write_gallery
from vitviz.datasets.rows import PictureResult
from vitviz.datasets.writers import PathMaker
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import quote, several
from vitviz.features import Kind
from vitviz.images.colours import ColorProfile
from vitviz.images.preprocessing import Fit
from vitviz.images.sources import ValueRange
from vitviz.system.atomic import atomic_write
from vitviz.visualization.heatmaps import Style


def run(
    source: str,
    output: Path,
    retry_failed: bool,
    column: str,
    batch_size: int | None,
    workers: int,
    max_bytes: int,
    fit: Fit | None,
    resolution: int | None,
    value_range: ValueRange | None,
    color_profile: ColorProfile | None,
    device: str,
    maps: Sequence[tuple[MethodName, dict[str, Any]]] = (),
    probes: Sequence[str] = (),
    features: FeatureRequest | None = None,
    pictures: bool = False,
    numbers: bool = False,
    masks: Path | None = None,
    box: tuple[float, float, float, float] | None = None,
    explorers: bool = False,
    gallery: bool = False,
    engine: str = LOCAL,
    ray_address: str | None = None,
    actors: int | None = None,
    actor_cpus: int = Cluster.cpus,
    **load_options: Any,
) -> int:
    """Run the batch; the exit status says whether some pictures failed."""
    if pictures and not maps:
        raise ConfigError("--pictures: overlays of maps, of which none is given; expected --map, such as --map rollout")
    # With Ray, the device is that of the workers; this machine may not have it.
    cluster = Cluster(ray_address, actors, actor_cpus, device if engine == RAY else Cluster.device)
    local_device = Cluster.device if engine == RAY else device
    # Check the source before the model is loaded, so that a wrong path fails fast.
    items = read_items(source, column)
    # The gallery sorts by these probes.
    probes = [*probes, *(GALLERY_PROBES if gallery else ())]
    model = load_with_bar(**load_options, device=local_device)
    request = BatchRequest(
        model,
        tuple(MapRequest(*each) for each in maps),
        tuple(probes),
        fit,
        resolution,
        value_range,
        color_profile,
        masks,
        box,
        features,
    )
    writers = [
        *[overlays(Style())] * pictures,
        *[NUMBERS] * numbers,
        *([_explorers(load_options["checkpoint"], fit, resolution)] if explorers else []),
    ]
    with reporting(desc="Pictures", unit=" pictures") as report:
        summary = run_batch(
            request,
            items,
            output,
            batch_size=batch_size,
            max_bytes=max_bytes,
            workers=workers,
            writers=writers,
            thumbnails=gallery,
            retry_failed=retry_failed,
            engine=engine,
            cluster=cluster,
            report=report,
        )
    _print(summary, output)
    if gallery:
        print(f"gallery: {write_gallery(output)}")
    return SOME_FAILED if summary.failed or summary.failed_before else 0


def run_features(layer: int | None, of: Kind, mean: bool, **options: Any) -> int:
    """Run a batch that keeps vectors alone."""
    return run(**options, features=FeatureRequest(layer, of, mean))


def _explorers(source: str, fit: Fit | None, resolution: int | None) -> Writer:
    """The writer of every picture's explorer."""
    from vitviz.ui.explorer.saved_page import whole_page

    def write(result: PictureResult, make_path: PathMaker) -> None:
        name = Path(str(result.analysis.source)).name
        page = whole_page(result.analysis, name, source=source, name=name, fit=fit or "", resolution=resolution)
        with atomic_write(make_path("html")) as file:
            file.write(page.encode())

    return Writer(EXPLORERS, write, lambda maps: ["html"], whole_pictures=False)


def run_atlas(results: Path, output: Path, misclassified: bool) -> None:
    """Write the atlas of a batch's results."""
    # Imported here, since it imports matplotlib.
    from vitviz.datasets.atlas_page import write_atlas

    atlas = read_atlas(results, misclassified=misclassified)
    print(f"atlas of {atlas.pictures:,} {'misclassified ' * misclassified}pictures: {write_atlas(atlas, output)}")


def _print(summary: Summary, output: Path) -> None:
    done = summary.analysed + summary.failed + summary.completed
    rate = f", {done / summary.seconds:.3g} a second" if done else ""
    skipped = f"; {summary.skipped:,} there before" if summary.skipped else ""
    skipped += f", {summary.failed_before:,} of which could not be analysed" * bool(summary.failed_before)
    skipped += f", {summary.completed:,} of which lacked files that are written now" * bool(summary.completed)
    failed = f"; {summary.failed:,} could not be analysed" if summary.failed else ""
    noun = "picture" if summary.analysed == 1 else "pictures"
    batch = "" if summary.batch_size is None else f", {summary.batch_size} at once"
    wait = (
        f"; the model waited {summary.wait_seconds / summary.seconds:.0%} of the time for pictures"
        if done and summary.wait_seconds is not None
        else ""
    )
    print(f"{summary.analysed:,} {noun} analysed{rate}{batch}{wait}{failed}{skipped}\nwritten to {output / 'parts'}")
    if summary.other_folders:
        folders = several([f"{quote(name)} ({count:,})" for name, count in summary.other_folders.items()])
        others = f"folders or classes of tables that name no class of the model: {folders}"
        print(f"true classes: of {summary.labelled:,} pictures; {others}")
    if summary.unmasked:
        print(f"masks: {summary.unmasked:,} of {summary.analysed:,} pictures have none")
    if summary.left_out:
        print(summary.left_out)
    if summary.errors:
        print("not analysed (with --retry-failed again, see the column error):")
    for path, error in summary.errors.items():
        # The message often begins with the name of the file.
        print(f"  {path}: {error.removeprefix(f'{Path(path).name}: ')}")
    if (unnamed := summary.failed + summary.failed_before - len(summary.errors)) > 0:
        print(f"  and {unnamed:,} more")
