"""The shell scripts behind the file operations that are derived from ``exec``.

They keep to what dash, bash and busybox have in common; where the tools differ they ask for
the better and make do with the worse. Paths are arguments (``$1``, ``$2``), so no name needs
quoting. What went wrong is told by the exit code, which is one of `FAILURES`; with any other
code, the tool's own message says it.
"""

from __future__ import annotations

from sandlot.errors import (
    SandboxFileError,
    SandboxFileExistsError,
    SandboxFileNotFoundError,
    SandboxFilePermissionError,
    SandboxIsADirectoryError,
    SandboxNotADirectoryError,
)

FAILURES: dict[str, tuple[int, type[SandboxFileError], str]] = {
    "MISSING": (71, SandboxFileNotFoundError, "No such file or directory"),
    "DENIED": (72, SandboxFilePermissionError, "Permission denied"),
    "IS_A_DIRECTORY": (73, SandboxIsADirectoryError, "Is a directory"),
    "NOT_A_DIRECTORY": (74, SandboxNotADirectoryError, "Not a directory"),
    "EXISTS": (75, SandboxFileExistsError, "File exists"),
}
NO_TAR = 76

_PRELUDE = "".join(f"{name}={code}\n" for name, (code, _, _) in FAILURES.items()) + (
    f"NO_TAR={NO_TAR}\n"
    r"""
unset TAR_OPTIONS
exists() { [ -e "$1" ] || [ -L "$1" ]; }
up() { case $p in */*) p=${p%/*}; p=${p:-/};; *) p=.;; esac; }
ancestor() { p=$1; up; until exists "$p" || [ "$p" = . ] || [ "$p" = / ]; do up; done; }
missing() {
  ancestor "$1"
  [ -e "$p" ] || exit $MISSING
  [ -d "$p" ] || exit $NOT_A_DIRECTORY
  [ -x "$p" ] || exit $DENIED
  exit $MISSING
}
parent() { p=$1; up; [ -d "$p" ] || missing "$1"; }
enter() {
  cd -P "$1" 2>/dev/null && return
  [ -d "$1" ] && exit $DENIED
  [ -e "$1" ] && exit $NOT_A_DIRECTORY
  missing "$1"
}
is_dir() { [ -d "$1" ] && [ ! -L "$1" ]; }
"""
)

# A description is `MODE SIZE TIME ./NAME` and a newline. As no name holds a slash, each slash
# marks where a name begins, whatever newlines the names hold. The links follow a zero byte.
_DESCRIBE = r"""
gnu_find() { find . -maxdepth 0 -printf '' 2>/dev/null; }
describe() {
  if [ $# = 0 ]; then return; fi
  if stat -c %A . >/dev/null 2>&1; then stat -c "%A %s %Y $as" -- "$@"; return; fi
  for f; do (
    set -f
    set -- "$f" $(ls -ldn -- "$f")
    case $6 in *[!0-9]*) size=0;; *) size=$6;; esac
    if [ "$as" = ./ ]; then f=./; fi
    printf '%s %s 0 %s\n' "$2" "$size" "$f"
  ); done
}
"""

LIST = (
    _DESCRIBE
    + r"""
enter "$1"
[ -r . ] || exit $DENIED
if gnu_find; then
  find . -mindepth 1 -maxdepth 1 -printf '%M %s %T@ ./%f\n' || [ $? = 1 ] || exit
  printf '\0'
  find . -mindepth 1 -maxdepth 1 -type l -printf '%f\0%l\0' || [ $? = 1 ]
  exit
fi
as=%n
batches() {
  set --
  for f in ./* ./.[!.]* ./..?*; do
    exists "$f" || continue
    set -- "$@" "$f"
    if [ $# = 500 ]; then describe "$@"; set --; fi
  done
  describe "$@"
}
batches
printf '\0'
for f in ./* ./.[!.]* ./..?*; do
  [ -L "$f" ] || continue
  printf '%s\0' "${f#./}"
  readlink -n -- "$f"
  printf '\0'
done
exit 0
"""
)

STAT = (
    _DESCRIBE
    + r"""
exists "$1" || missing "$1"
gnu_find && exec find "$1" -maxdepth 0 -printf '%M %s %T@ ./\n\0\0%l\0'
as=./
describe "$1" || exit
printf '\0\0'
if [ -L "$1" ]; then readlink -n -- "$1"; fi
printf '\0'
"""
)

MAKE_DIR = """
mkdir -p -- "$1" && exit
exists "$1" && exit $EXISTS
ancestor "$1"
[ -d "$p" ] || exit $NOT_A_DIRECTORY
exit 1
"""

REMOVE = """
exists "$1" || missing "$1"
if ! is_dir "$1"; then rm -f -- "$1"
elif [ "$2" = tree ]; then rm -rf -- "$1"
else rmdir -- "$1"; fi
"""

# A plain mv would move *into* a link to a directory instead of replacing it.
MOVE = """
exists "$1" || missing "$1"
parent "$2"
[ "$1" = "$2" ] && exit
is_dir "$2" && exit $IS_A_DIRECTORY
is_dir "$1" && exists "$2" && exit $NOT_A_DIRECTORY
if [ -d "$2" ]; then
  mv -fT -- "$1" "$2" 2>/dev/null || { rm -f -- "$2" && mv -f -- "$1" "$2"; }
else mv -f -- "$1" "$2"; fi
"""

SET_MODE = """
[ -e "$1" ] || missing "$1"
chmod -- "$2" "$1"
"""

LINK = """
is_dir "$1" && exit $IS_A_DIRECTORY
parent "$1"
rm -f -- "$1" && ln -s -- "$2" "$1"
"""

UNPACK = """
command -v tar >/dev/null 2>&1 || exit $NO_TAR
(enter "$1") || exit
tar -xpof - -C "$1"
"""

SPOOL = """
command -v tar >/dev/null 2>&1 || exit $NO_TAR
(enter "$1") || exit
umask 077
mkdir -- "$2"
"""

DISCARD_SPOOL = 'rm -rf -- "$1"'

UNPACK_SPOOL = """
cat -- "$2"/* | tar -xpof - -C "$1"
status=$?
rm -rf -- "$2"
exit $status
"""

# GNU tar exits with 1 when a file changed while it was read, which is no failure. Either tar
# leaves out the archive itself, should it lie in the tree.
PACK = """
command -v tar >/dev/null 2>&1 || exit $NO_TAR
(enter "$1") || exit
umask 077
tree=$1 name=$2 at=0
shift 2
for d; do (: >"$d/$name") 2>/dev/null && break; at=$((at + 1)); done
tar -cf "$d/$name" -C "$tree" .
status=$?
if [ $status = 1 ]; then case $(tar --version 2>/dev/null) in *GNU*) status=0;; esac; fi
[ $status = 0 ] || exit $status
echo $at $(wc -c <"$d/$name")
"""

CUT = 'dd if="$1" of="$1.part" bs="$2" skip="$3" count=1'

DISCARD_PACKED = 'name=$1; shift; for d; do rm -f -- "$d/$name" "$d/$name.part"; done'


def argv(script: str, *args: str) -> tuple[str, ...]:
    """Return the argv that runs a script with these arguments."""
    return ("/bin/sh", "-c", _PRELUDE + script, "sh", *args)


def operand(path: str) -> str:
    """Return ``path`` so that no tool takes it for an option, and no shell searches for it."""
    return path if path.startswith("/") else f"./{path}"
