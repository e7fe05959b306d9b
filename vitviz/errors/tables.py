"""Small tables, as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def text_table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of cells as lines with aligned columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def html_table(rows: Iterable[Sequence[str]], heads: Sequence[str] = ()) -> str:
    """Rows of cells as a table in the colours of the page around it, below heads of the columns if there are any."""
    style = 'style="text-align:left;vertical-align:top"'
    head = "".join(f"<th {style}>{escape(cell)}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td {style}>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<table style="margin:8px 0">{f"<thead><tr>{head}</tr></thead>" if heads else ""}<tbody>{body}</tbody></table>'
    )
