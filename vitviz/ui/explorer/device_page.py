"""The page that runs networks on the visitor's device: one HTML file, or a folder for a static host.

Both have the same parts besides the page: weights, kernels, the scripts of its workers, and pictures. A file has them
as blocks of text after the page, so that they are not in its way; a folder has them as files.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.encoder import analyze
from vitviz.attribution import METHODS
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import listing
from vitviz.features import layer_scores
from vitviz.images.encoded import encoded
from vitviz.images.opening import open_image
from vitviz.images.sources import ImageSource
from vitviz.ui.explorer.app_page import ICON
from vitviz.ui.explorer.assets import FOLDER, document_around, json_block, script, style
from vitviz.ui.explorer.device_file import device_file, device_refusal
from vitviz.ui.facts import FINDING, FINDINGS, analysis_facts, examples, flips, model_facts, settings
from vitviz.ui.first_view import LEAST_SHARE, opening_view
from vitviz.ui.image_bytes import as_base64, as_webp
from vitviz.ui.models import family_of, title_of
from vitviz.ui.packs import layer_pack
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.state import PageState
from vitviz.weights import Model, resources
from vitviz.weights.own_network import as_own

DEVICE_METHODS = (
    *("attention", "pooling_attention", "attention_mass", "rollout", "occlusion"),
    *("relevance", "gradient_rollout", "legrad", "grad_cam", "integrated_gradients"),
)
DEVICE_PROBES = (
    *("token_norms", "outlier_patches", "sink_tokens", "sink_mass", "prefix_mass"),
    *("attention_distance", "attention_entropy", "head_similarity"),
)
DEVICE_FITS = ("squash", "crop")
ONLY_THE_APP = "Only the app computes {}, and maps about a text or another picture."
# Up to so many products, files of all rollouts are small and soon made.
MAX_ROLLOUT_PRODUCTS = 2**30
# As QUICK_SEARCH of the app, of a device, which takes three times as long.
QUICK_ON_DEVICE = 2e9
# What every browser opens as Pillow does, up to a size at which a page is still pleasant.
BROWSER_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")
MAX_PICTURE_BYTES, REDUCED_SIDE = 4_000_000, 2000
# The longer side of the picture on the page, in pixels; maps do not depend on it.
SHOWN_SIDE = 900
# The characters after the colon are as many as those of an upload.
FIRST_PICTURE = "picture:the-first-picture-here"
KERNELS = ("kernels.wasm", "kernels-relaxed.wasm", "kernels.wgsl")
WORKERS = ("analysis_worker.js", "device_worker.js")
# Weights that are downloaded, or larger than this, are compressed in half the time, and are hardly larger.
MAX_SLOW_BYTES, SLOW, FAST = 64_000_000, 6, 4
# Nothing from elsewhere, and nothing to anywhere.
FILE_POLICY = (
    "default-src 'none'; script-src {script} 'wasm-unsafe-eval'; style-src {style}; img-src data: blob:; "
    "font-src data:; worker-src blob:; base-uri 'none'; form-action 'none'"
)
FOLDER_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src data:; connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none'"
)
ABOUT = "See where an image-recognition model looks, in your own picture, which stays on your device."


@dataclass(frozen=True)
class DevicePicture:
    """A picture that the page has with it.

    Args:
        name: of its file.
        content: of a file that browsers open.
    """

    name: str
    content: bytes

    @classmethod
    def of(cls, source: ImageSource, name: str) -> DevicePicture:
        """A picture as it is, or as a JPEG file if browsers may not open it, or it is large."""
        image = open_image(source, name)
        content = _file_content(source)
        if content is None or len(content) > MAX_PICTURE_BYTES or _format(content) not in BROWSER_FORMATS:
            image.thumbnail((REDUCED_SIDE, REDUCED_SIDE))
            content = encoded(image, "JPEG", quality=95)
        return cls(name, content)


@dataclass(frozen=True)
class DevicePage:
    """The page and what it loads.

    Args:
        start: JSON with which it begins.
        parts: files by name.
        title: of the page.
    """

    start: dict[str, Any]
    parts: dict[str, bytes]
    title: str

    def as_file(self) -> str:
        """One HTML file that works from disk and fetches nothing."""
        code, styles = f"\n{script()}", f"\n{style()}"
        policy = FILE_POLICY.format(script=_hash(code), style=_hash(styles))
        blocks = "\n".join(
            f'<script type="text/plain" id="part-{name}">{as_base64(content)}</script>'
            for name, content in self.parts.items()
        )
        return self._document(
            policy, f"<style>{styles}</style>", f'<script type="module">{code}</script>\n{blocks}', self.start
        )

    def as_folder(self) -> dict[str, bytes]:
        """Files by their paths, for any static host; weights and scripts have addresses of their content."""
        page_files = {"page.js": script().encode(), "page.css": style().encode()}
        version = hashlib.sha256(b"".join([*page_files.values(), *self.parts.values()])).hexdigest()[:12]
        folder = f"files-{version}/"
        head = f'<link rel="stylesheet" href="{folder}page.css">\n<script type="module" src="{folder}page.js"></script>'
        start = {**self.start, "device": {**self.start["device"], "folder": folder}}
        document = self._document(FOLDER_POLICY, head, "", start)
        files = {f"{folder}{name}": content for name, content in (page_files | self.parts).items()}
        return {"index.html": document.encode(), **files}

    def _document(self, policy: str, head: str, scripts: str, start: dict[str, Any]) -> str:
        meta = (
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy, quote=True)}">\n'
            f'<meta name="description" content="{html.escape(ABOUT)}">\n<link rel="icon" href="{ICON}">\n'
        )
        before, after = document_around(
            title=html.escape(self.title), head=meta + head, body="app", heading="", script=scripts
        )
        return f"{before}{json_block(start)}{after}"


def device_page(
    models: Sequence[Model],
    picture: ImageSource | None = None,
    *,
    name: str = "picture.jpg",
    title: str = "vitviz",
    ids: Sequence[str] = (),
    is_downloaded: bool = False,
    server: str = "",
) -> DevicePage:
    """The explorer that runs these models in the browser of whoever opens it.

    Args:
        models: as :func:`vitviz.load` gives them; the first is the one that the page begins with.
        picture: that the page begins with, as :func:`vitviz.open_image` takes it; the first example by default.
        name: file name of the picture.
        title: of the page.
        ids: of the models in states; by default their names, and that of the first is empty.
        is_downloaded: whether weights are files of their own, so that the menu of models names their sizes.
        server: address of the app that computes more than the page, from the page; empty if there is none.

    Raises:
        ConfigError: there is no model, or one that the page cannot run; the message says why.
        ImageError: the picture cannot be opened.
    """
    if not models:
        raise ConfigError("models: none given; expected one or more")
    models = [as_own(model) for model in models]
    for model in models:
        if (reason := device_refusal(model)) is not None:
            raise ConfigError(f"{model.name} {reason}")
    ids = ids or ["", *(model.name for model in models[1:])]
    if len(set(ids)) < len(ids):
        raise ConfigError(f"models {listing([model.name for model in models])}: two have the same name")
    pictures = {f"example:{each}": DevicePicture(each, (resources("assets") / each).read_bytes()) for each in EXAMPLES}
    if picture is not None:
        pictures = {FIRST_PICTURE: DevicePicture.of(picture, name), **pictures}
    first = next(iter(pictures))
    parts: dict[str, bytes] = {worker: script(f"device/{worker}").encode() for worker in WORKERS}
    parts |= {kernels: (FOLDER / "device" / kernels).read_bytes() for kernels in KERNELS}
    weights = {model_id: f"model-{number}.gz" for number, model_id in enumerate(ids)}
    place = {picture_id: f"picture-{number}" for number, picture_id in enumerate(pictures)}
    files = (packed(device_file(model), FAST if is_downloaded else SLOW) for model in models)
    parts |= zip(weights.values(), files, strict=True)
    parts |= {place[picture_id]: each.content for picture_id, each in pictures.items()}
    sizes = {model_id: len(parts[part]) / 1e6 * is_downloaded for model_id, part in weights.items()}
    analysis = analyze(pictures[first].content, models[0])
    start = {
        **_opening(analysis, ids[0], first, pictures[first].name),
        "settings": _settings(models, ids, sizes),
        "models": {model_id: _model_facts(model_id, model) for model_id, model in zip(ids, models, strict=True)},
        "device": {
            "models": {
                model_id: {
                    "part": weights[model_id],
                    "title": title_of(model),
                    "alike_layer": layer_scores(model).best,
                    **_abilities(model),
                }
                for model_id, model in zip(ids, models, strict=True)
            },
            "pictures": {
                picture_id: {"name": each.name, "part": place[picture_id]} for picture_id, each in pictures.items()
            },
            "shown_side": SHOWN_SIDE,
            "least_share": LEAST_SHARE,
            "findings": [
                ("", FINDING),
                *(
                    (f"{name} {layer} {head} {row} {column}", sentence)
                    for (name, layer, head, (row, column)), sentence in FINDINGS.items()
                ),
            ],
            "folder": "",
            "server": server,
        },
    }
    return DevicePage(start, parts, title)


def packed(content: bytes, level: int) -> bytes:
    """A file of weights with the high bytes of all words before the low ones, compressed with gzip."""
    content += b" " * (len(content) % 2)
    return gzip.compress(content[1::2] + content[::2], level if len(content) <= MAX_SLOW_BYTES else FAST, mtime=0)


def _opening(analysis: Analysis, model_id: str, picture: str, name: str) -> dict[str, Any]:
    """The first view with its facts and the one file that its map needs, for the time until the network is there."""
    view = replace(opening_view(analysis), model=model_id, picture=picture, probe=DEVICE_PROBES[0])
    state, layer = PageState((view,)), view.parameters.get("layer", analysis.trace.layers - 1)
    prepared = analysis.prepared
    small = prepared.resized(SHOWN_SIDE) if max(prepared.image.size) > SHOWN_SIDE else prepared
    address = f"data:image/webp;base64,{as_base64(as_webp(small.image, quality=90))}"
    pixels = prepared.geometry.image_width, prepared.geometry.image_height
    facts = analysis_facts("page", replace(analysis, prepared=small), address, view=view, name=name, pixels=pixels)
    return {
        "state": state.to_json(),
        "views": [{**facts, **_abilities(analysis.model)}],
        "files": {f"layer {layer}": as_base64(layer_pack(analysis.trace, layer))},
    }


def _abilities(model: Model) -> dict[str, Any]:
    """Whether the page makes the file of all rollouts of a picture, and when it searches for squares, as `flips`."""
    return {
        "rolls": model.network.config.depth * model.layout.token_count**3 <= MAX_ROLLOUT_PRODUCTS,
        "flips": flips(model, model.layout.token_count, QUICK_ON_DEVICE),
    }


def _settings(models: Sequence[Model], ids: Sequence[str], megabytes: dict[str, float]) -> dict[str, Any]:
    """The settings of a page, without what it cannot compute, which a sentence names."""
    whole, others = settings(), [each.title for each in METHODS.values() if each.name not in DEVICE_METHODS]
    return {
        **whole,
        "methods": [each for each in whole["methods"] if each["name"] in DEVICE_METHODS],
        "probes": [each for each in whole["probes"] if each["name"] in DEVICE_PROBES],
        "fits": [each for each in whole["fits"] if each["name"] in DEVICE_FITS],
        "absent": ONLY_THE_APP.format(", ".join(title.lower() if title[1:].islower() else title for title in others)),
        "models": [
            {"id": model_id, "title": title_of(model), "family": family_of(model), "megabytes": megabytes[model_id]}
            for model_id, model in zip(ids, models, strict=True)
        ],
        "examples": examples(),
        "opens_any": False,
        "max_upload_bytes": 2**30,
        "max_clip_bytes": 2**30,
        # A picture is shown whole by “squash”, which a click chooses.
        "least_seen": 0,
    }


def _model_facts(model_id: str, model: Model) -> dict[str, Any]:
    facts, config = model_facts(model_id, title_of(model), model), model.network.config
    # The page needs no package for what it computes by itself.
    methods = [replace(METHODS[name], package=None) for name in DEVICE_METHODS]
    refusals = {each.name: f"{reason}." for each in methods if (reason := each.refusal(config)) is not None}
    probes = {name: reason for name, reason in facts["probe_refusals"].items() if name in DEVICE_PROBES}
    return {
        **facts,
        "refusals": refusals,
        "probe_refusals": probes,
        "resolutions": facts["resolutions"][:1],
        "reads_text": False,
        "steps": None,
    }


def _file_content(source: ImageSource) -> bytes | None:
    """The bytes of a source that is a file; None for pixels."""
    if isinstance(source, str | os.PathLike):
        return Path(source).read_bytes()
    return source if isinstance(source, bytes) else None


def _format(content: bytes) -> str | None:
    with Image.open(BytesIO(content)) as image:
        return image.format


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
