"""The backend that `docs/backends/writing.md` shows passes the conformance suite.

But for the behaviours that the page says it does not have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs/backends/writing.md"

_shown: dict[str, Any] = {"__name__": "writing"}
for _block in blocks.blocks(PAGE):
    if _block.language == "python" and "class " in _block.text:
        exec(compile(_block.text, f"<{PAGE.name}>", "exec"), _shown)

TestDirectory = _shown["TestDirectory"]

# Behaviours that it is said not to have: to be sure that nothing happens takes 20 s each.
for _name in TestDirectory.gaps:
    setattr(TestDirectory, f"test_{_name}", None)
