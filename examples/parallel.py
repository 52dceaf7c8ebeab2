"""Twenty sandboxes at once, five at a time: candidates for a solution, each tried on its own.

Usage: parallel.py [BACKEND]. The backend ``local``, which is taken unless another is named,
isolates nothing.
"""

import asyncio
import sys
import time

from sandlot import AsyncSandboxClient, SandboxResult

AT_ONCE = 5
TEST = """
from solution import is_prime
assert [n for n in range(30) if is_prime(n)] == [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
"""


def candidates() -> list[str]:
    """Some right, some wrong, some that never end."""
    right = "def is_prime(n): return n > 1 and all(n % d for d in range(2, n))"
    wrong = "def is_prime(n): return n % 2 == 1"
    endless = "def is_prime(n):\n    while True: pass"
    return [right, wrong, right, endless] * 5


async def judge(client: AsyncSandboxClient, solution: str) -> SandboxResult:
    """Run the test on one solution, in a sandbox of its own."""
    async with client.create(files={"solution.py": solution, "test.py": TEST}) as sb:
        return await sb.execute_command(["python3", "test.py"], timeout=2)


async def main() -> None:
    started = time.perf_counter()
    places = asyncio.Semaphore(AT_ONCE)
    async with AsyncSandboxClient(sys.argv[1] if len(sys.argv) > 1 else "local") as client:

        async def judged(number: int, solution: str) -> str:
            async with places:
                result = await judge(client, solution)
            verdict = "too slow" if result.timed_out else "right" if result.ok else "wrong"
            print(f"{number:3}  {verdict:8}  {result.duration:.2f} s", flush=True)
            return verdict

        verdicts = await asyncio.gather(*(judged(*item) for item in enumerate(candidates(), 1)))
    counts = {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))}
    print(counts, f"in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    asyncio.run(main())
