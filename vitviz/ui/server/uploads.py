"""Uploads: unfinished files are deleted at once."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from gradio import route_utils, routes

from vitviz.ui.files import WRITTEN
from vitviz.ui.server.bodies import RequestError

FIELD = "files"
# All files of a request stay open until it ends.
MAX_FILES = 100
# RFC 2046.
MAX_BOUNDARY_CHARS = 70
# A page may ask for an upload's progress for this long after its end.
PROGRESS_SECONDS = 60.0

# Gradio's own multipart parser.
_gradio: Any = route_utils
MultiPartException, parse_options_header = _gradio.MultiPartException, _gradio.parse_options_header

_parsers: ContextVar[list[UploadParser] | None] = ContextVar("parsers", default=None)
_upload: Callable[..., Any] = route_utils.upload_fn


class FormError(_gradio.MultiPartException):
    """A refused form, with our own message; other messages of the parser may quote the form."""


class UploadParser(route_utils.GradioMultiPartParser):
    """Reads the files of a form, refuses other fields, and can delete the files that it wrote."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "max_files": MAX_FILES, "max_fields": 0})
        started = _parsers.get()
        if started is not None:
            started.append(self)

    def on_headers_finished(self) -> None:
        super().on_headers_finished()
        part = self._current_part
        if part.file is None or part.field_name != FIELD:
            raise FormError(f"the form has a field that is no file: expected only {FIELD!r}")
        name = Path(part.file.filename or "").name
        # Gradio invents a name for one without a legal character.
        if not name.strip(". "):
            raise FormError("a file has no name: expected one such as cat.jpg")

    async def parse(self) -> Any:
        """The files.

        Raises:
            FormError: the form is malformed or incomplete.
        """
        _, options = parse_options_header(self.headers["Content-Type"])
        boundary = options.get(b"boundary", b"")
        if re.fullmatch(rb"[ -~]{1,%d}" % MAX_BOUNDARY_CHARS, boundary) is None:
            raise FormError(f"Content-Type: expected a boundary of 1 to {MAX_BOUNDARY_CHARS} characters")
        form = await super().parse()
        if not self.items or len(self.items) != len(self._files_to_close_on_error):
            raise FormError(f"the form ends before its last file does: expected files in {FIELD!r}")
        return form

    def delete_files(self) -> None:
        """Delete the files; those that are already in the cache are deleted by their age."""
        for file in self._files_to_close_on_error:
            file.close()
            Path(file.name).unlink(missing_ok=True)
        if self.upload_dir is not None:
            hashes = [file.sha.hexdigest() for _, file in self.items if isinstance(file, route_utils.GradioUploadFile)]
            WRITTEN.update(str(path) for digest in hashes for path in (Path(self.upload_dir) / digest).glob("*"))


class UploadProgress(route_utils.FileUploadProgress):
    """Drops the signals of uploads that do not exist."""

    async def is_tracked(self, upload_id: str) -> bool:
        try:
            return bool(await super().is_tracked(upload_id))
        finally:
            if upload_id not in self._statuses:
                self._signals.pop(upload_id, None)

    def forget(self, upload_id: str) -> None:
        self.stop_tracking(upload_id)
        self._signals.pop(upload_id, None)


async def upload(
    request: Any,
    upload_dir: str,
    max_file_size: float,
    upload_id: str | None,
    force_move: bool = True,
    upload_progress: Any = None,
) -> Any:
    """Gradio's ``upload_fn`` that leaves nothing on the disk when an upload fails."""
    started: list[UploadParser] = []
    token = _parsers.set(started)
    try:
        # Without force_move, Gradio may move files after its response, when nobody learns of an error.
        return await _upload(request, upload_dir, max_file_size, upload_id, True, upload_progress)
    except BaseException as error:
        for parser in started:
            parser.delete_files()
        if isinstance(error, MultiPartException):
            raise _refusal(error, max_file_size) from None
        raise
    finally:
        _parsers.reset(token)
        if upload_id and isinstance(upload_progress, UploadProgress):
            asyncio.get_running_loop().call_later(PROGRESS_SECONDS, upload_progress.forget, upload_id)


def _refusal(error: Any, max_file_size: float) -> RequestError:
    """The reason for refusing a form, in one sentence."""
    if isinstance(error, FormError):
        return RequestError(400, error.message)
    if "File size" in error.message:
        return RequestError(413, f"a file has more than {max_file_size:,.0f} bytes")
    return RequestError(400, f"the form cannot be read: expected at most {MAX_FILES} files, all in {FIELD!r}")


def tidy_uploads() -> None:
    """Replace Gradio's parser, upload function and progress with these."""
    modules: tuple[Any, ...] = (route_utils, routes)
    for module in modules:
        module.GradioMultiPartParser = UploadParser
        module.upload_fn = upload
    if not isinstance(routes.file_upload_statuses, UploadProgress):
        routes.file_upload_statuses = UploadProgress()
