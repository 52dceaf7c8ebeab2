"""The environment that local commands start with."""

from __future__ import annotations

import os
from collections.abc import Mapping

from sandlot.types import SandboxSpec

_SAFE = ("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TERM")
"""What is taken over from the host without being asked: nothing that could be a secret."""
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(
    spec: SandboxSpec, *, sandbox_id: str, root: str, tmp: str, home: str
) -> dict[str, str]:
    """Return the whole environment of a local sandbox.

    The host's own variables stay out unless ``inherit_env`` asks for them: an agent's keys
    are among them.
    """
    env = {"PATH": _DEFAULT_PATH, "LANG": "C.UTF-8"}
    env |= {name: os.environ[name] for name in _SAFE if name in os.environ}
    env |= _inherited(spec, os.environ)
    env |= {"HOME": home, "TMPDIR": tmp, "SANDLOT_SANDBOX_ID": sandbox_id, "SANDLOT_ROOT": root}
    return env | dict(spec.env_vars)


def _inherited(spec: SandboxSpec, host: Mapping[str, str]) -> dict[str, str]:
    if spec.inherit_env is True:
        return dict(host)
    if not spec.inherit_env:
        return {}
    return {name: host[name] for name in spec.inherit_env if name in host}
