"""The core against its floors and a peer: ratios of medians, measured in one run.

    python bench/core.py [--peer PYTHON] [--quick]

``--peer`` names the interpreter of an environment in which ``bespokelabs-sandbox`` is
installed; without it, that row is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

from measure import Pair, pair

from sandlot import AsyncSandbox
from sandlot.types import DEFAULT_MAX_OUTPUT_BYTES

Report = Callable[[Pair], None]

_SPAWN = {
    "stdin": asyncio.subprocess.DEVNULL,
    "stdout": asyncio.subprocess.PIPE,
    "stderr": asyncio.subprocess.PIPE,
}


async def spawn(*argv: str) -> bytes:
    """Run a command as plain asyncio does."""
    process = await asyncio.create_subprocess_exec(*argv, **_SPAWN)
    out, _ = await process.communicate()
    return out


async def imports(report: Report, rounds: int) -> None:
    def cpu(code: str) -> Callable[[], Awaitable[object]]:
        async def run() -> None:
            subprocess.run([sys.executable, "-I", "-c", code], check=True)

        return run

    report(
        await pair("import sandlot", cpu("import sandlot"), cpu("pass"),
                   against="bare python", rounds=rounds)
    )  # fmt: skip
    report(
        await pair("from sandlot import Sandbox", cpu("from sandlot import Sandbox"),
                   cpu("import asyncio, ssl"), against="import asyncio, ssl", rounds=rounds)
    )  # fmt: skip
    own = _cpu_seconds("import sandlot", rounds) - _cpu_seconds("pass", rounds)
    print(f"{'import sandlot: CPU over bare python':<38} {own * 1e3:>9.2f} ms   (goal <= 40 ms)")


def _cpu_seconds(code: str, rounds: int) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(rounds):
        subprocess.run([sys.executable, "-I", "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / rounds


async def execution(report: Report, rounds: int) -> None:
    async with AsyncSandbox.create("local") as box:
        report(
            await pair(
                "execute_command(['true'])",
                lambda: box.execute_command(["true"]),
                lambda: spawn("true"),
                against="create_subprocess_exec",
                rounds=rounds * 10,
                goal=1.1,
            )
        )
        python = (
            await box.execute_command("python3 -c 'import sys; print(sys.executable)'")
        ).stdout
        report(
            await pair(
                "execute_code('print(1)')",
                lambda: box.execute_code("print(1)"),
                lambda: spawn(python.strip(), "-c", "print(1)"),
                against="python -c",
                rounds=rounds,
            )
        )


async def fork_server(report: Report, rounds: int) -> None:
    async with AsyncSandbox.create("local", backend_options={"fork_server": True}) as box:
        report(
            await pair(
                "execute_code, fork server",
                lambda: box.execute_code("print(1)"),
                lambda: spawn(sys.executable, "-c", "print(1)"),
                against="python -c",
                rounds=rounds,
            )
        )


async def peer(report: Report, rounds: int, python: str) -> None:
    """Ask the peer, in a process of its own, to run the same command over and over."""
    script = (
        "import sys\nfrom bespokelabs.sandbox import Sandbox\n"
        "with Sandbox('local') as sb:\n"
        "    for line in sys.stdin:\n"
        "        sb.execute_command('true', args=[])\n"
        "        print(flush=True)\n"
    )
    process = subprocess.Popen(
        [python, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def theirs() -> None:
        stdin.write("\n")
        stdin.flush()
        stdout.readline()

    try:
        async with AsyncSandbox.create("local") as box:
            report(
                await pair(
                    "execute_command('true', args=[])",
                    lambda: box.execute_command("true", args=[]),
                    theirs,
                    against="bespokelabs-sandbox local",
                    rounds=rounds * 10,
                )
            )
    finally:
        stdin.close()
        process.wait()
        stdout.close()


async def output(report: Report, rounds: int) -> None:
    size = 100_000_000

    async def pipe() -> None:
        def read() -> None:
            process = subprocess.Popen(
                ["head", "-c", str(size), "/dev/zero"], stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            while os.read(process.stdout.fileno(), 65536):
                pass
            process.stdout.close()
            process.wait()

        read()

    async with AsyncSandbox.create("local") as box:
        for kept, what in ((1_000_000, "1 MB kept"), (DEFAULT_MAX_OUTPUT_BYTES, "64 MB kept")):
            report(
                await pair(
                    f"100 MB of stdout, {what}",
                    lambda kept=kept: box.execute_command(  # type: ignore[misc]
                        ["head", "-c", str(size), "/dev/zero"], max_output_bytes=kept
                    ),
                    pipe,
                    against="reading a pipe, keeping nothing",
                    rounds=rounds,
                )
            )


async def concurrency(report: Report, rounds: int) -> None:
    async with AsyncSandbox.create("local") as box:

        async def ours() -> None:
            await asyncio.gather(*(box.execute_command(["sleep", "0.1"]) for _ in range(1000)))

        async def theirs() -> None:
            await asyncio.gather(*(spawn("sleep", "0.1") for _ in range(1000)))

        threads = threading.active_count()
        await ours()
        grown = threading.active_count() - threads
        report(
            await pair(
                "1000 x sleep 0.1 at once",
                ours,
                theirs,
                against="plain asyncio",
                rounds=max(3, rounds // 5),
                goal=1.5,
            )
        )
        print(f"{'  threads grown by':<38} {grown:>9}")


async def upload(report: Report, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        source = Path(name, "source")
        for number in range(1000):
            path = source / f"d{number % 20}" / f"f{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(1024))
        counter = iter(range(10_000))
        async with AsyncSandbox.create("local") as box:

            async def theirs() -> None:
                target = Path(name, f"t{next(counter)}")
                target.mkdir()
                pipeline = f"tar -C {source} -cf - . | tar -C {target} -xf -"
                await spawn("sh", "-c", pipeline)

            report(
                await pair(
                    "upload_dir of 1000 files",
                    lambda: box.upload_dir(source, f"u{next(counter)}"),
                    theirs,
                    against="tar | tar",
                    rounds=max(3, rounds // 3),
                )
            )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="a Python that has bespokelabs-sandbox")
    parser.add_argument("--quick", action="store_true", help="few rounds: does it run at all")
    options = parser.parse_args()
    rounds = 3 if options.quick else 30

    def report(measured: Pair) -> None:
        print(measured.row(), flush=True)

    await imports(report, rounds)
    await execution(report, rounds)
    await fork_server(report, rounds)
    if options.peer:
        await peer(report, rounds, options.peer)
    await output(report, max(3, rounds // 3))
    await concurrency(report, rounds)
    await upload(report, rounds)


if __name__ == "__main__":
    asyncio.run(main())
