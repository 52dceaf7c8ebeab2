"""Output as it comes, and a program that is talked to. Usage: streaming.py [BACKEND]

The backend ``local``, which is taken unless another is named, isolates nothing.
"""

import sys

from sandlot import Sandbox

COUNTDOWN = """
import time
for number in (3, 2, 1):
    print(number, flush=True)
    time.sleep(0.2)
raise SystemExit("lift-off")
"""

CALCULATOR = """
while True:
    try:
        print(eval(input(), {"__builtins__": {}}), flush=True)
    except EOFError:
        break
"""


def main() -> None:
    backend = sys.argv[1] if len(sys.argv) > 1 else "local"
    with Sandbox(backend, files={"countdown.py": COUNTDOWN, "calculator.py": CALCULATOR}) as sb:
        for chunk in sb.stream("python3 countdown.py"):
            print(f"{chunk.stream}: {chunk.text}", end="", flush=True)

        with sb.start("python3 calculator.py", stdin=True) as calculator:
            answers = iter(calculator)
            for question in ("6 * 7", "2 ** 64"):
                calculator.write(f"{question}\n")
                print(f"{question} = {next(answers).text}", end="")
            calculator.close_stdin()
            print("exit code", calculator.wait().exit_code)


if __name__ == "__main__":
    main()
