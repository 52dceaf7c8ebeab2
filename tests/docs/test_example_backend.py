"""The backend that `docs/backends/writing.md` shows is one: it passes the conformance suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs/backends/writing.md"

_shown: dict[str, Any] = {"__name__": "writing"}
for _block in blocks.blocks(PAGE):
    if _block.language == "python" and "class " in _block.text:
        exec(compile(_block.text, str(PAGE), "exec"), _shown)

TestDirectory = _shown["TestDirectory"]
