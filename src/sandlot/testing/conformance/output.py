"""Output: its bytes, its text, its size."""

from __future__ import annotations

from sandlot.capabilities import Capability
from sandlot.sandbox import AsyncSandbox
from sandlot.testing.conformance.base import Behaviours, requires, slow

_COFFEE = "☕" * 100_000


class Output(Behaviours):
    """Output: its bytes, its text, its size."""

    async def test_bytes_come_out_as_they_are(self, sb: AsyncSandbox) -> None:
        """Every byte value, on both streams."""
        data = bytes(range(256)) * 5
        await sb.write_file("data", data)
        result = await sb.execute_command("cat data; cat data >&2")
        assert (result.stdout_bytes, result.stderr_bytes) == (data, data)

    async def test_what_is_no_utf_8_is_replaced_in_the_text_alone(self, sb: AsyncSandbox) -> None:
        """The text shows that something was there, the bytes say what."""
        result = await sb.execute_command("printf 'a\\377\\376z'")
        assert result.stdout == "a\ufffd\ufffdz"
        assert result.stdout_bytes == b"a\xff\xfez"

    async def test_newlines_nul_and_escapes_are_kept(self, sb: AsyncSandbox) -> None:
        """Nothing is trimmed, added or translated."""
        result = await sb.execute_command("printf '\\r\\nx\\000y\\033[1m\\tz\\n\\n  '")
        assert result.stdout == "\r\nx\0y\x1b[1m\tz\n\n  "

    async def test_no_output_is_empty_output(self, sb: AsyncSandbox) -> None:
        """Neither stream gets a newline of its own."""
        result = await sb.execute_command("true")
        assert (result.stdout_bytes, result.stderr_bytes) == (b"", b"")

    async def test_many_characters_of_many_bytes_survive(self, sb: AsyncSandbox) -> None:
        """However the transport cuts them."""
        await sb.write_file("coffee", _COFFEE)
        assert (await sb.execute_command("cat coffee")).stdout == _COFFEE

    @requires(Capability.STREAM)
    async def test_a_character_cut_in_two_arrives_whole(self, sb: AsyncSandbox) -> None:
        """The texts of a stream's chunks, joined, are its text."""
        line = "printf 'a\\342'; sleep 0.3; printf '\\230'; sleep 0.3; printf '\\225z'"
        chunks = [chunk async for chunk in sb.stream(line)]
        assert "".join(chunk.text for chunk in chunks) == "a☕z"
        assert b"".join(chunk.data for chunk in chunks) == "a☕z".encode()

    @requires(Capability.STREAM)
    async def test_a_character_never_finished_is_replaced_at_the_end(
        self, sb: AsyncSandbox
    ) -> None:
        """Its bytes are not lost without a trace."""
        chunks = [chunk async for chunk in sb.stream("printf 'a\\342\\230'")]
        assert "".join(chunk.text for chunk in chunks) == "a\ufffd"

    @requires(Capability.STREAM)
    async def test_a_long_text_streams_whole(self, sb: AsyncSandbox) -> None:
        """A hundred thousand characters of three bytes, none replaced."""
        await sb.write_file("coffee", _COFFEE)
        texts = [chunk.text async for chunk in sb.stream("cat coffee")]
        assert "".join(texts) == _COFFEE

    async def test_a_line_may_be_long(self, sb: AsyncSandbox) -> None:
        """Two megabytes without a newline."""
        result = await sb.execute_command("head -c 2000000 /dev/zero | tr '\\0' x")
        assert result.stdout == "x" * 2_000_000

    async def test_a_limit_keeps_head_and_tail(self, sb: AsyncSandbox) -> None:
        """What is left out is the middle, and the true size is told."""
        result = await sb.execute_command(_LONG, max_output_bytes=1000)
        assert result.truncated
        assert result.out.size == 1_000_010
        assert len(result.stdout_bytes) <= 1000
        assert result.stdout_bytes.startswith(b"HEAD\nxxx")
        assert result.stdout_bytes.endswith(b"xxxTAIL\n")
        assert str(result.out.dropped) in result.stdout

    async def test_a_limit_does_not_stop_the_command(self, sb: AsyncSandbox) -> None:
        """It runs to its end, and its exit code is its own."""
        result = await sb.execute_command(f"{_LONG}; echo > done; exit 6", max_output_bytes=10)
        assert result.exit_code == 6
        assert await sb.exists("done")

    async def test_a_limit_is_each_streams_own(self, sb: AsyncSandbox) -> None:
        """A flood on one stream drowns nothing on the other."""
        result = await sb.execute_command(f"{_LONG}; echo why >&2", max_output_bytes=1000)
        assert result.stderr == "why\n"
        assert not result.err.dropped

    async def test_output_within_the_limit_is_whole(self, sb: AsyncSandbox) -> None:
        """A limit that is just reached leaves nothing out."""
        result = await sb.execute_command("head -c 1000 /dev/zero", max_output_bytes=1000)
        assert not result.truncated
        assert result.stdout_bytes == bytes(1000)

    @slow
    async def test_fifty_megabytes_come_out(self, sb: AsyncSandbox) -> None:
        """Whole, unless told otherwise."""
        result = await sb.execute_command("head -c 50000000 /dev/zero; echo end >&2")
        assert result.out.size == len(result.stdout_bytes) == 50_000_000
        assert not result.stdout_bytes.strip(b"\0")
        assert result.stderr == "end\n"


_LONG = "echo HEAD; head -c 1000000 /dev/zero | tr '\\0' x; echo TAIL"
