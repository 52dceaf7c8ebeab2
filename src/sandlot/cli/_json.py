"""Results as JSON, for programs. Keys are stable: they are added, never renamed."""

from __future__ import annotations

import json
from typing import Any

import click


def show(value: Any = None, /, **keys: Any) -> None:
    """Print a value, or an object of these keys."""
    click.echo(json.dumps(keys if value is None else value, indent=2))
