"""Archives of any kind, also of such as no tar would make."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TypeAlias

from sandlot._archive import Limits, Report, unpack

Member: TypeAlias = tarfile.TarInfo | tuple[str, bytes]
"""An entry, or the name and the content of a file."""


def member(name: str, **facts: object) -> tarfile.TarInfo:
    """Return an entry with these attributes."""
    info = tarfile.TarInfo(name)
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info


def archive(*members: Member, format: int = tarfile.PAX_FORMAT) -> bytes:
    """Return an archive of these entries, in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for each in members:
            if isinstance(each, tuple):
                name, content = each
                tar.addfile(member(name, size=len(content)), io.BytesIO(content))
            else:
                tar.addfile(each, io.BytesIO(bytes(each.size)))
    return buffer.getvalue()


def unpacked(data: bytes, dest: Path, size: int = 10_000, limits: Limits | None = None) -> Report:
    """Unpack an archive that comes in pieces of ``size``."""
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    return unpack(pieces, str(dest), limits or Limits())
