"""Sandboxes on this host, fast and without isolation.

Commands run as the caller, owned by a resident helper that keeps track of all their
descendants. What this backend gives is order, not protection: a working directory of its
own, a clean environment, limits where the kernel enforces them, and nothing left behind.
"""

from __future__ import annotations

from sandlot.backends.local.backend import LocalBackend

__all__ = ["LocalBackend"]
