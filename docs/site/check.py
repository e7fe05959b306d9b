"""Reads the built site as a browser would: ``python -m docs.site.check FOLDER``.

Every link leads to a page and an anchor that are there, and no page loads anything from another host.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose addresses a browser fetches by itself, by element; of <link>, only these are fetched.
FETCHED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
FETCHED_LINKS = {"stylesheet", "icon", "shortcut icon", "preload", "modulepreload", "manifest"}
STYLE_ADDRESS = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """The links of a page, what it fetches, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = {"", "top"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        address = found.get(FETCHED.get(tag, ""))
        if address and (tag != "link" or found.get("rel") in FETCHED_LINKS):
            self.fetched.append(address)


def read(path: Path) -> Page:
    """A page of the site."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(site: Path) -> list[str]:
    """One sentence for everything that is wrong in a built site."""
    found, pages = [], {path.resolve(): read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        place = path.relative_to(site.resolve())
        for address in (*page.links, *page.fetched):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                if address in page.fetched and parts.scheme != "data":
                    found.append(f"{place}: fetches {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{place}: {address} leads nowhere")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors and target.suffix == ".html":
                found.append(f"{place}: {address} has no such anchor")
    for path in sorted(site.rglob("*.css")):
        for match in STYLE_ADDRESS.finditer(path.read_text(encoding="utf-8")):
            address = match[1] or match[2]
            if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
                found.append(f"{path.relative_to(site)}: fetches {address}")
    return found


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    site = Path(sys.argv[1])
    found = problems(site)
    print(
        "\n".join(found) or f"{len(list(site.rglob('*.html')))} pages: every link leads somewhere, nothing is fetched"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
