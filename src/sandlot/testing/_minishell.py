"""A small shell for simulated processes: a real parser for a part of POSIX sh.

It knows lists (``;`` ``&`` ``&&`` ``||``), pipelines, ``!``, groups ``{ }``, subshells ``( )``,
``if``, ``while``, ``until`` and ``for``; quoting, ``$name``, ``${name}``, ``${name:-word}``,
``$1``, ``$@``, ``$#``, ``$?``, ``$$``, ``$!`` and ``$(command)``; redirections ``<`` ``>``
``>>`` ``2>`` ``2>&1``; comments. It has no globs, functions, arithmetic, ``case`` and here
documents; where it meets one of these it says so instead of guessing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias


class ShellSyntaxError(Exception):
    """The line is not of the part of sh that this shell knows."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word: plain text, or something to expand."""

    kind: str
    """``text``, ``name`` (a parameter) or ``command`` (a substitution)."""
    text: str
    quoted: bool = False
    default: str | None = None


Word: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Redirect:
    """One redirection."""

    number: int
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    """Words, with variables set for them and redirections."""

    assignments: tuple[tuple[str, Word], ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class Compound:
    """A group, a subshell, a condition or a loop."""

    kind: str
    """``{``, ``(``, ``if``, ``while``, ``until`` or ``for``."""
    parts: tuple[Script, ...]
    name: str = ""
    words: tuple[Word, ...] | None = None
    redirects: tuple[Redirect, ...] = ()


Command: TypeAlias = Simple | Compound


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands joined by pipes."""

    commands: tuple[Command, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """Pipelines joined by ``&&`` and ``||``, in the foreground or not."""

    pipelines: tuple[tuple[str, Pipeline], ...]
    background: bool = False


Script: TypeAlias = tuple[Item, ...]

_OPERATOR = re.compile(r"\d?>&|\d?>>|\d?>|\d?<(?!<)|&&|\|\||[;&|(){}\n!]")
_SPACE = re.compile(r"(?:[ \t]|\\\n)+|#[^\n]*")
_PLAIN = re.compile(r"[^\s\\'\"$`;&|()<>]+")
_NAME = re.compile(r"\{([A-Za-z_]\w*|[\d@*#?$!])(?::-([^{}]*))?\}|([A-Za-z_]\w*|[\d@*#?$!])")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_RESERVED = {"then", "do", "done", "fi", "else", "elif", "}"}


@dataclass(frozen=True, slots=True)
class _Token:
    operator: str = ""
    word: Word = ()

    @property
    def bare(self) -> str:
        """The word's text, if nothing in it is quoted or expanded."""
        plain = len(self.word) == 1 and self.word[0].kind == "text" and not self.word[0].quoted
        return self.word[0].text if plain else ""


def parse(line: str) -> Script:
    """Return the commands of a line or script.

    Raises:
        ShellSyntaxError: If it is not of the part of sh that this shell knows.
    """
    parser = _Parser(_Lexer(line).tokens())
    script = parser.script()
    if not parser.at_end:
        raise ShellSyntaxError(f"unexpected {parser.shown!r}")
    return script


def expandable(text: str) -> Word:
    """Return the parts of a text as between double quotes."""
    return tuple(_Lexer(text + '"').double_quoted())


@dataclass
class _Lexer:
    line: str
    at: int = 0

    def tokens(self) -> list[_Token]:
        found: list[_Token] = []
        while self.at < len(self.line):
            if space := _SPACE.match(self.line, self.at):
                self.at = space.end()
            elif token := self._operator():
                found.append(token)
            else:
                found.append(_Token(word=self.word()))
        return found

    def _operator(self) -> _Token | None:
        match = _OPERATOR.match(self.line, self.at)
        if match is None:
            if self.line.startswith("<<", self.at):
                raise ShellSyntaxError("here documents are not known here")
            return None
        text = match[0]
        following = self.line[match.end() : match.end() + 1]
        if text in "{}!" and following and not following.isspace() and following not in ";)":
            return None
        self.at = match.end()
        return _Token(word=(Part("text", text),)) if text in "{}!" else _Token(text)

    def word(self) -> Word:
        parts: list[Part] = []
        while self.at < len(self.line):
            char = self.line[self.at]
            if match := _PLAIN.match(self.line, self.at):
                self.at = match.end()
                parts.append(Part("text", match[0]))
            elif char == "\\":
                parts.append(Part("text", self.line[self.at + 1 : self.at + 2], quoted=True))
                self.at += 2
            elif char == "'":
                parts.append(Part("text", self._up_to("'"), quoted=True))
            elif char == '"':
                self.at += 1
                parts += self.double_quoted()
            elif char == "$":
                parts.append(self._dollar(quoted=False))
            elif char == "`":
                parts.append(Part("command", self._up_to("`")))
            else:
                break
        return tuple(parts)

    def _up_to(self, end: str) -> str:
        stop = self.line.find(end, self.at + 1)
        if stop < 0:
            raise ShellSyntaxError(f"no closing {end}")
        text, self.at = self.line[self.at + 1 : stop], stop + 1
        return text

    def double_quoted(self) -> list[Part]:
        parts = [Part("text", "", quoted=True)]
        plain = re.compile(r'[^"\\$`]+')
        while True:
            char = self.line[self.at : self.at + 1]
            if not char:
                raise ShellSyntaxError('no closing "')
            if char == '"':
                self.at += 1
                return parts
            if match := plain.match(self.line, self.at):
                self.at = match.end()
                parts.append(Part("text", match[0], quoted=True))
            elif char == "\\":
                escaped = self.line[self.at + 1 : self.at + 2]
                text = escaped if escaped in '$`"\\' else f"\\{escaped}"
                parts.append(Part("text", "" if escaped == "\n" else text, quoted=True))
                self.at += 2
            elif char == "$":
                parts.append(self._dollar(quoted=True))
            else:
                parts.append(Part("command", self._up_to("`"), quoted=True))

    def _dollar(self, *, quoted: bool) -> Part:
        self.at += 1
        if self.line.startswith("((", self.at):
            raise ShellSyntaxError("arithmetic is not known here")
        if self.line.startswith("(", self.at):
            return Part("command", self._balanced(), quoted=quoted)
        match = _NAME.match(self.line, self.at)
        if match is None:
            if self.line.startswith("{", self.at):
                raise ShellSyntaxError("this parameter expansion is not known here")
            return Part("text", "$", quoted=quoted)
        self.at = match.end()
        return Part("name", match[1] or match[3], quoted=quoted, default=match[2])

    def _balanced(self) -> str:
        """Return what stands between the parentheses that open here."""
        inner = _Lexer(self.line, self.at + 1)
        depth = 1
        while depth:
            if inner.at >= len(self.line):
                raise ShellSyntaxError("no closing )")
            char = self.line[inner.at]
            if char in "()":
                depth += 1 if char == "(" else -1
                inner.at += 1
            elif not inner.word():
                inner.at += 1
        text, self.at = self.line[self.at + 1 : inner.at - 1], inner.at
        return text


@dataclass
class _Parser:
    tokens: list[_Token]
    at: int = field(default=0)

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.tokens)

    @property
    def _next(self) -> _Token:
        return _Token() if self.at_end else self.tokens[self.at]

    @property
    def shown(self) -> str:
        return "the end" if self.at_end else self._next.operator or self._next.bare or "a word"

    def _take(self, *operators: str) -> str:
        if self._next.operator and self._next.operator in operators:
            self.at += 1
            return self.tokens[self.at - 1].operator
        return ""

    def _take_word(self, *words: str) -> str:
        if self._next.bare and self._next.bare in words:
            self.at += 1
            return self.tokens[self.at - 1].bare
        return ""

    def _must(self, word: str) -> None:
        if not (self._take(word) or self._take_word(word)):
            raise ShellSyntaxError(f"expected {word!r}, found {self.shown!r}")

    def _skip_newlines(self) -> None:
        while self._take("\n"):
            pass

    def script(self) -> Script:
        items: list[Item] = []
        while True:
            while self._take("\n", ";"):
                pass
            if self.at_end or self._next.operator == ")" or self._next.bare in _RESERVED:
                return tuple(items)
            pipelines = [("", self._pipeline())]
            while operator := self._take("&&", "||"):
                self._skip_newlines()
                pipelines.append((operator, self._pipeline()))
            items.append(Item(tuple(pipelines), background=bool(self._take("&"))))
            if self._next.operator == "(":
                raise ShellSyntaxError("functions are not known here")

    def _pipeline(self) -> Pipeline:
        negated = bool(self._take_word("!"))
        commands = [self._command()]
        while self._take("|"):
            self._skip_newlines()
            commands.append(self._command())
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        if self._take("("):
            body = self.script()
            self._must(")")
            return Compound("(", (body,), redirects=self._redirects())
        if self._take_word("{"):
            body = self.script()
            self._must("}")
            return Compound("{", (body,), redirects=self._redirects())
        if self._take_word("if"):
            return self._if()
        if kind := self._take_word("while", "until"):
            condition = self.script()
            return Compound(kind, (condition, self._body()), redirects=self._redirects())
        if self._take_word("for"):
            return self._for()
        if self._take_word("case", "function"):
            raise ShellSyntaxError("case and functions are not known here")
        return self._simple()

    def _if(self) -> Compound:
        parts = [self.script()]
        self._must("then")
        parts.append(self.script())
        if self._take_word("elif"):
            nested = self._if()
            return Compound("if", (*parts, (Item((("", Pipeline((nested,))),)),)))
        if self._take_word("else"):
            parts.append(self.script())
        self._must("fi")
        return Compound("if", tuple(parts), redirects=self._redirects())

    def _for(self) -> Compound:
        name = self._next.bare
        self.at += 1
        words: list[Word] | None = None
        if self._take_word("in"):
            words = []
            while self._next.word:
                words.append(self._next.word)
                self.at += 1
        while self._take(";", "\n"):
            pass
        body = self._body()
        chosen = None if words is None else tuple(words)
        return Compound("for", (body,), name, chosen, self._redirects())

    def _body(self) -> Script:
        self._must("do")
        body = self.script()
        self._must("done")
        return body

    def _redirects(self) -> tuple[Redirect, ...]:
        found: list[Redirect] = []
        while redirect := self._redirect():
            found.append(redirect)
        return tuple(found)

    def _redirect(self) -> Redirect | None:
        operator = self._next.operator
        bare = operator.lstrip("0123456789")
        if bare not in ("<", ">", ">>", ">&"):
            return None
        self.at += 1
        target = self._next.word
        if not target:
            raise ShellSyntaxError(f"expected a word after {operator}")
        self.at += 1
        digits = operator[: len(operator) - len(bare)]
        return Redirect(int(digits or (0 if bare == "<" else 1)), bare, target)

    def _simple(self) -> Simple:
        assignments: list[tuple[str, Word]] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        while True:
            if redirect := self._redirect():
                redirects.append(redirect)
            elif not self._next.word:
                break
            elif not words and (split := _assignment(self._next.word)):
                assignments.append(split)
                self.at += 1
            else:
                words.append(self._next.word)
                self.at += 1
        if not (assignments or words or redirects):
            raise ShellSyntaxError(f"expected a command, found {self.shown!r}")
        return Simple(tuple(assignments), tuple(words), tuple(redirects))


def _assignment(word: Word) -> tuple[str, Word] | None:
    first = word[0]
    match = _ASSIGNMENT.match(first.text) if first.kind == "text" and not first.quoted else None
    if match is None:
        return None
    rest = first.text[match.end() :]
    return match[1], (*((Part("text", rest),) if rest else ()), *word[1:])
