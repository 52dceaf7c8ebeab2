"""The loop of a coding agent: it proposes a command, sees what came of it, and goes on.

The model is played by a script here, so that the example runs anywhere. Replace `model` with
a call to a real one: it is given the conversation so far and returns the next command.

Usage: agent_loop.py [BACKEND]. The backend ``local``, which is taken unless another is named,
isolates nothing: don't let a real model loose in it.
"""

import sys
from dataclasses import dataclass, field

from sandlot import Sandbox, SandboxResult

BROKEN = "def mean(values):\n    return sum(values) / len(value)\n"
TEST = "from stats import mean\nassert mean([1, 2, 3]) == 2\nprint('all tests passed')\n"


@dataclass
class Turn:
    """One command, and what the model is told of its result."""

    command: str
    observation: str


@dataclass
class Conversation:
    """The task, and what was done so far."""

    task: str
    turns: list[Turn] = field(default_factory=list)


def model(conversation: Conversation) -> str | None:
    """Return the next command, or None when done."""
    if not conversation.turns:
        return "python3 test_stats.py"
    last = conversation.turns[-1].observation
    if "all tests passed" in last:
        return None
    if "NameError: name 'value' is not defined" in last:
        return "sed -i 's/len(value)/len(values)/' stats.py && python3 test_stats.py"
    return "cat stats.py"


def observation(result: SandboxResult, limit: int = 2000) -> str:
    """What the model gets to see: enough to go on, and never more than its context holds."""
    text = (result.stdout + result.stderr).strip()
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n[...]\n{text[-limit // 2 :]}"
    if result.timed_out:
        return f"{text}\n(killed: it took too long)"
    return text if result.ok else f"{text}\n(exit code {result.exit_code})"


def main() -> None:
    backend = sys.argv[1] if len(sys.argv) > 1 else "local"
    conversation = Conversation("make the tests pass")
    with Sandbox(backend, files={"stats.py": BROKEN, "test_stats.py": TEST}) as sb:
        while len(conversation.turns) < 10 and (command := model(conversation)):
            result = sb.execute_command(command, timeout=30, max_output_bytes=20_000)
            conversation.turns.append(Turn(command, observation(result)))
            print(f"$ {command}\n{conversation.turns[-1].observation}\n")
        print(sb.read_file("stats.py").decode(), end="")


if __name__ == "__main__":
    main()
