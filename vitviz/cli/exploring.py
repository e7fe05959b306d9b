"""The commands ``vitviz explore`` and ``vitviz site``, which write the explorer as one HTML file or as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.picture_files import Picture, analysis_of, find_picture, source_of, take_settings
from vitviz.cli.printing import check_output, note, write_whole
from vitviz.errors.kinds import ConfigError


def run(image: str | None, output: Path | None, link: str, with_model: bool, **options: Any) -> None:
    """Write the explorer of a picture, or one that runs the model on pictures of whoever opens it."""
    if image is None and not with_model:
        raise ConfigError("IMAGE: none given; expected one, or --with-model for a page that asks for pictures")
    picture = None if image is None else find_picture(image)
    output = output or (picture.result(None, ".html") if picture else Path(f"{Path(options['checkpoint']).stem}.html"))
    check_output(output, image or "", ".html", ".htm")
    settings = take_settings(options)
    if picture is None or with_model:
        return _write_with_model(picture, output, settings | {"link": link or None}, options)
    analysis = analysis_of(picture, load_with_bar(**options), **settings)
    # It takes long to import, so a wrong path or option is refused first.
    from vitviz.ui.explorer.saved_page import whole_page

    link = link.partition("?")[2] if "://" in link else link
    page = whole_page(
        analysis,
        picture.name,
        source=options["checkpoint"],
        name=picture.name,
        link=link,
        fit=settings["fit"] or "",
        resolution=settings["resolution"],
    )
    write_whole(output, lambda file: file.write(page.encode()))
    note(f"All layers and heads, {len(page) / 1e6:.1f} MB\nwritten to {output}")


def _write_with_model(picture: Picture | None, output: Path, settings: dict[str, Any], options: dict[str, Any]) -> None:
    for name in ("fit", "resolution", "value_range", "color_profile", "link"):
        if settings[name] is not None:
            raise ConfigError(f"{name} = {settings[name]}: a page with its model opens with the model's own input")
    model = load_with_bar(**options)
    from vitviz.ui.explorer.device_page import device_page

    name, title = ("", model.name) if picture is None else (picture.name, picture.name)
    source = None if picture is None else source_of(picture.path)
    page = device_page([model], source, name=name, title=title).as_file()
    write_whole(output, lambda file: file.write(page.encode()))
    note(f"The page runs {model.name} by itself, {len(page) / 1e6:.1f} MB\nwritten to {output}")


def run_site(models: list[str], output: Path, family: str | None, overrides: list[str]) -> None:
    """Write the explorer that runs models on the visitor's device as a folder for any static host."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output}: not an empty folder; expected a new one")
    loaded = [load_with_bar(name, family, overrides, "cpu", "float32") for name in models]
    from vitviz.ui.explorer.device_page import device_page
    from vitviz.ui.explorer.device_site import write_site

    size = write_site(device_page(loaded, is_downloaded=True), output)
    note(
        f"{len(loaded)} model{'s' * (len(loaded) != 1)}, {size / 1e6:.1f} MB\n"
        f"written to {output}; python -m http.server -d {output} serves it"
    )
