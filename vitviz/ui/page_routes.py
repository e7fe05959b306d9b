"""The routes of the page: uploads, files, maps, links, and one for what takes long."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from vitviz import __version__
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import quote
from vitviz.system.strangers import FORM_FILES
from vitviz.ui.device import PAGE
from vitviz.ui.explorer.app_page import app_page, static_files, static_version
from vitviz.ui.handlers import Handlers
from vitviz.ui.pictures import upload_of
from vitviz.ui.previews import Previews
from vitviz.ui.progress_reports import Report
from vitviz.ui.runs import PageRuns, outcome
from vitviz.ui.server.line import current_visitor
from vitviz.ui.server.routes import DEVICE, FILE, HEALTH, PREVIEW, UPLOAD
from vitviz.ui.server.rule import RequestError
from vitviz.ui.server.visitor_files import NewFile

# An upload is written in parts of this size, which is as much of it as uvicorn holds.
BATCH_BYTES, PART_BYTES = 2**18, 2**16
NO_FORM = f"the form cannot be read: expected 1 to {FORM_FILES} whole files, all in 'files'"
# The last boundary of a form, which has at most 70 characters (RFC 2046), and what may follow it.
MAX_END_BYTES = 100
BYTES = "application/octet-stream"
# Browsers show these without running anything, and save every other file.
PICTURES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
}
NO_FILE = "no such file, or not kept any more"
# The page is compressed when its first analysis is new, in some milliseconds.
PAGE_LEVEL = 6
NO_CACHE = {"cache-control": "no-cache"}
# The address has the version of the content.
IMMUTABLE = {"cache-control": "public, max-age=31536000, immutable"}
# For which a page waits for the sentence of its link.
SENTENCE_SECONDS = 2.0
# The picture of a link; another version of the app may draw another one.
PICTURE_HEADERS = {"cache-control": "public, max-age=3600"}
# A file of an analysis never changes, and is nobody else's.
KEPT = {"cache-control": "private, max-age=31536000, immutable"}
# Proxies pass on each line as it comes.
STREAMED = {"cache-control": "no-store", "x-accel-buffering": "no"}
READ = ["GET", "HEAD"]


class PageRoutes:
    """The routes.

    Args:
        handlers: answer the requests.

    Attributes:
        routes: of Starlette.
        runs: what takes long.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers, self._service, self._disk = handlers, handlers.service, handlers.service.folder
        # What the page begins with, while its analysis is kept; the page, compressed, with the address that it names.
        self._start: dict[str, Any] | None = None
        self._html: tuple[str, bytes] | None = None
        self.runs, self._previews = PageRuns(handlers), Previews(handlers.service)
        self.routes = [
            Route("/", self._page, methods=READ),
            Route(HEALTH, self._health, methods=READ),
            Route(PREVIEW, self._preview, methods=READ),
            Route("/static/{version}/{name}", self._static, methods=READ),
            Route(DEVICE, self._device, methods=READ),
            Route(f"{DEVICE}{{folder}}/{{name}}", self._device, methods=READ),
            Route("/upload", self._upload, methods=["POST"]),
            Route(UPLOAD, self._upload_form, methods=["POST"]),
            Route("/files/{uid}/{name}", _answering(self._file)),
            Route("/made/{folder}/{name}", self._made),
            Route(f"{FILE}{{path:path}}", self._visitor_file, methods=READ),
            Route("/map", _answering(partial(_json, handlers.map)), methods=["POST"]),
            Route("/describe", _answering(partial(_json, self._describe)), methods=["POST"]),
            Route("/run", self._run, methods=["POST"]),
            Route("/end", self._end, methods=["POST"]),
        ]

    # ---- the page ----

    async def _page(self, request: Request) -> Response:
        if self._start is None or self._service.cache.get(self._start["views"][0]["uid"]) is None:
            self._start, self._html = await self._handlers.start(), None
        start = self._start
        # A proxy that is not trusted has no such header here.
        host = request.headers.get("x-forwarded-host", "").split(",")[0].strip() or request.base_url.netloc
        address = str(request.base_url.replace(netloc=host))
        query, words = request.url.query, list[str | None]()

        async def find_words() -> None:
            # It goes on, and counts, when the page is answered.
            with suppress(RequestError), self._service.under_way.counted(current_visitor()):
                for kind in ("sentence", "description"):
                    words.append(await self._previews.find(kind, query))

        finding = asyncio.ensure_future(find_words())
        # Nobody waits longer for the page itself; whoever asks next finds it.
        await asyncio.wait([finding], timeout=SENTENCE_SECONDS)
        title, description = [*words, None, None][:2]
        about = () if title is None else (title, description, f"{PREVIEW[1:]}?{query}")
        if about or self._html is None or self._html[0] != address:
            page = await self._service.quick.run(
                lambda _: gzip.compress(app_page(start, address, *about).encode(), PAGE_LEVEL)
            )
            if about:
                return _compressed(request, page, "text/html", NO_CACHE)
            self._html = address, page
        return _compressed(request, self._html[1], "text/html", NO_CACHE)

    async def _preview(self, request: Request) -> Response:
        """The picture of a link to an example with its map."""
        picture = await self._previews.find("picture", request.url.query)
        if picture is None:
            raise RequestError(404, NO_FILE)
        return Response(picture, headers=PICTURE_HEADERS, media_type="image/jpeg")

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__, "model": self._service.models.start.name})

    async def _static(self, request: Request) -> Response:
        found = static_files().get(request.path_params["name"])
        if found is None or request.path_params["version"] != static_version():
            raise RequestError(404, NO_FILE)
        return _compressed(request, *found, IMMUTABLE)

    async def _device(self, request: Request) -> Response:
        """The page that computes on the visitor's device, or one of its files."""
        path = "/".join(request.path_params.values()) or PAGE
        if not self._handlers.device.models:
            raise RequestError(404, NO_FILE)
        files = await self._handlers.device.files()
        if path in files.weights:
            return FileResponse(files.weights[path], headers=IMMUTABLE, media_type=BYTES)
        if path not in files.texts:
            raise RequestError(404, NO_FILE)
        return _compressed(request, *files.texts[path], NO_CACHE if path == PAGE else IMMUTABLE)

    # ---- answered at once ----

    async def _file(self, request: Request) -> Response:
        """A file of an analysis, such as the queries and keys of a layer."""
        name = request.path_params["name"]
        path = await self._service.file(request.path_params["uid"], name)
        headers = {**KEPT, "content-length": str(path.stat().st_size)}
        return StreamingResponse(_parts(path), 200, headers, PICTURES.get(Path(name).suffix, BYTES))

    async def _made(self, request: Request) -> Response:
        """A file that a run has made."""
        return self._found(self._disk.path / request.path_params["folder"] / request.path_params["name"])

    async def _visitor_file(self, request: Request) -> Response:
        """An upload, or a file that an endpoint has made."""
        return self._found(Path(request.path_params["path"]))

    async def _describe(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return await self._service.quick.run(lambda _: self._handlers.describe(request))

    # ---- what takes long ----

    async def _run(self, request: Request) -> Response:
        """Lines of JSON: progress, and at last the reply. The same request again reads on."""
        lines = self.runs.lines(await request.json())
        # What is refused is refused before the response begins.
        first = await anext(lines)

        async def written() -> AsyncIterator[str]:
            async with aclosing(lines):
                yield f"{json.dumps(first)}\n"
                async for line in lines:
                    yield f"{json.dumps(line)}\n"

        return StreamingResponse(written(), headers=STREAMED, media_type="application/x-ndjson")

    async def _end(self, request: Request) -> Response:
        self.runs.end(await request.json())
        return Response(status_code=204)

    # ---- uploads ----

    async def _upload(self, request: Request) -> Response:
        """Keep the body as a file, whole or not at all; the answer has its path, and its name as a picture."""
        name = request.query_params.get("name", "")
        with self._disk.new(name) as file:
            async for content in _batches(request.stream()):
                await self._service.quick.run(partial(_write, file, content))
        upload = upload_of({"path": str(file.path), "orig_name": name})
        return JSONResponse({"path": str(file.path), "picture": self._service.pictures.id(upload, current_visitor())})

    async def _upload_form(self, request: Request) -> Response:
        """Keep the files of a form, as Gradio's clients send them; the answer has their paths."""
        boundary = re.search(r'boundary="?([^";]{1,70})', request.headers.get("content-type", ""))
        end = b""

        with self._disk.borrow() as grow:

            async def stream() -> AsyncGenerator[bytes, None]:
                nonlocal end
                async for part in request.stream():
                    await asyncio.to_thread(grow, len(part))
                    end = (end + part)[-MAX_END_BYTES:]
                    yield part

            # It has temporary files of its own.
            parser = MultiPartParser(request.headers, stream(), max_files=FORM_FILES, max_fields=0)
            try:
                form = await parser.parse()
                files = form.getlist("files")
                is_whole = boundary is not None and end.rstrip().endswith(f"--{boundary[1]}--".encode())
                if not files or len(files) != len(form.multi_items()) or not is_whole:
                    raise RequestError(400, NO_FORM)
                return JSONResponse([str(await asyncio.to_thread(self._copied, file)) for file in files])
            except (MultiPartException, KeyError):
                # The parser's own message may quote the form.
                raise RequestError(400, NO_FORM) from None
            finally:
                # Those that are not whole, too.
                for spooled in parser._files_to_close_on_error:
                    spooled.close()

    def _copied(self, upload: Any) -> Path:
        with self._disk.new(upload.filename or "") as file:
            shutil.copyfileobj(upload.file, file)
        return file.path

    # ---- files ----

    def _found(self, path: Path) -> Response:
        """A file of the app's folder."""
        found = self._disk.find(path)
        if found is None:
            raise RequestError(404, NO_FILE)
        picture = PICTURES.get(path.suffix.lower())
        disposition = "attachment" if picture is None else "inline"
        return FileResponse(
            found, headers=KEPT, media_type=picture or BYTES, filename=path.name, content_disposition_type=disposition
        )


def _answering(respond: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A route with a response, or why there is none."""

    async def answer(request: Request) -> Response:
        found = await outcome("a request of the page", respond(request))
        return found if isinstance(found, Response) else JSONResponse(found, 410 if "expired" in found else 400)

    return answer


async def _json(handler: Callable[[Mapping[str, Any]], Awaitable[Any]], request: Request) -> Response:
    """What a handler makes of a JSON object: its bytes, or its JSON."""
    value = await request.json()
    if not isinstance(value, Mapping):
        raise MethodError(f"the request = {quote(value)}: expected an object")
    found = await handler(value)
    return Response(found, media_type=BYTES) if isinstance(found, bytes) else JSONResponse(found)


async def _parts(path: Path) -> AsyncIterator[bytes]:
    """The parts of a file that was written lately: to read them takes less than to ask a thread."""
    with open(path, "rb") as file:
        while part := file.read(PART_BYTES):
            yield part


def _write(file: NewFile, content: bytes, report: Report) -> int:
    return file.write(content)


async def _batches(parts: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The parts of a body, joined up to a size, since each takes a turn of a thread."""
    batch = bytearray()
    async for part in parts:
        batch += part
        if len(batch) >= BATCH_BYTES:
            yield bytes(batch)
            batch.clear()
    if batch:
        yield bytes(batch)


# All who take their time share it.
_decompressed = lru_cache(maxsize=8)(gzip.decompress)


def _compressed(request: Request, content: bytes, media_type: str, headers: Mapping[str, str]) -> Response:
    """A response of bytes that are compressed with gzip, or of what they are for a client that does not read gzip."""
    is_read = "gzip" in request.headers.get("accept-encoding", "")
    encoding = {"content-encoding": "gzip"} if is_read else {}
    body = content if is_read else _decompressed(content)
    return Response(body, 200, {**headers, **encoding, "vary": "accept-encoding"}, media_type)
