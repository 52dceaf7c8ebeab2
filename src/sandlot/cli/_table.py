"""Tables: drawn on a terminal, plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence

Row = Sequence[str]


def show(headings: Row, rows: Sequence[Row]) -> None:
    """Print rows under headings to standard output."""
    if sys.stdout.isatty():
        _draw(headings, rows)
    else:
        _print(headings, rows)


def _draw(headings: Row, rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell or "-") for cell in row))
    Console().print(table)


def _print(headings: Row, rows: Sequence[Row]) -> None:
    lines = [list(headings), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip())
