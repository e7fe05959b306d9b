"""The page that runs networks on the visitor's device, as the app serves it beside its own."""

from __future__ import annotations

import asyncio
import gzip
import mimetypes
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from weakref import finalize

import torch

from vitviz.ui.explorer.device_file import device_refusal
from vitviz.ui.explorer.device_page import device_page
from vitviz.ui.progress_reports import Report
from vitviz.ui.service import AnalysisService
from vitviz.weights import BUNDLED, Model, load

# Of the setting: the model with which the app opens, and none.
START, NOTHING = "start", "none"
# From the page on the device to that of the server, and its own address there.
SERVER, PAGE = "../", "index.html"
WEIGHTS = ".gz"
COMPRESSION = 6


def device_models(start: Model, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names in states of the models that visitors may run on their own device.

    Args:
        start: the model with which the app opens.
        names: of the setting; None offers the bundled model alone, since weights of others are the operator's to send.
    """
    if names is None:
        names = (START,) if start.name in BUNDLED and device_refusal(start) is None and _is_bundled(start) else ()
    return tuple("" if name == START else name for name in names if name != NOTHING)


def _is_bundled(model: Model) -> bool:
    own, bundled = model.network.state_dict(), load(model.name).network.state_dict()
    return own.keys() == bundled.keys() and all(torch.equal(own[name].cpu(), bundled[name]) for name in own)


@dataclass(frozen=True)
class DeviceFiles:
    """The files of the page by their paths.

    Args:
        texts: the page with its scripts, kernels and pictures: their bytes, compressed with gzip, and their media type.
        weights: files that are compressed already.
    """

    texts: dict[str, tuple[bytes, str]]
    weights: dict[str, Path]


class DevicePages:
    """Makes the page when somebody first asks for it. For one event loop.

    Args:
        service: opens the models.
        models: their names in states; none if visitors' devices shall compute nothing.
    """

    def __init__(self, service: AnalysisService, models: tuple[str, ...] = ()) -> None:
        self.models = models
        self._service = service
        self._making = asyncio.Lock()
        self._files: DeviceFiles | None = None

    async def files(self) -> DeviceFiles:
        """The files, made once.

        Raises:
            ConfigError: a page cannot run one of the models; the message says why.
            CheckpointError: a model cannot be opened.
        """
        async with self._making:
            if self._files is None:
                models = [await self._service.models.open(self._service.models.choice(name)) for name in self.models]
                self._files = await self._service.long.run(partial(self._written, models))
        return self._files

    def _written(self, models: list[Model], report: Report) -> DeviceFiles:
        page = device_page(models, ids=self.models, is_downloaded=True, server=SERVER)
        # Not in the folder of uploads, which deletes what nobody uses for a while.
        files, folder = DeviceFiles({}, {}), Path(mkdtemp(prefix="device-"))
        finalize(files, shutil.rmtree, folder, ignore_errors=True)
        for path, content in page.as_folder().items():
            if path.endswith(WEIGHTS):
                files.weights[path] = folder / Path(path).name
                files.weights[path].write_bytes(content)
            else:
                kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
                files.texts[path] = gzip.compress(content, COMPRESSION), kind
        return files
