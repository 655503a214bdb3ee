"""Takes the commands and snippets out of the README."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

README = (Path(__file__).resolve().parent.parent / "README.md").read_text("utf-8")
SERVER = "http://127.0.0.1:8765"


@dataclass(frozen=True, slots=True)
class Curl:
    """A curl command of the README."""

    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    body: str | None


def code_blocks(language: str) -> list[str]:
    """The fenced blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def shell_commands() -> list[list[str]]:
    """Every command of the shell blocks, in words, redirections left out."""
    words = []
    for block in code_blocks("bash"):
        lexer = shlex.shlex(block, posix=True, punctuation_chars="\n;<>|")
        lexer.whitespace = " \t"
        lexer.whitespace_split = True
        words += [*lexer, "\n"]
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("\n;|"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def parse_curl(words: list[str]) -> Curl:
    """Understand the options that the README uses, and no others."""
    method, headers, body, url = None, {}, None, ""
    rest = iter(words[1:])
    for word in rest:
        match word:
            case "-s" | "-sN":
                continue
            case "-X":
                method = next(rest)
            case "-H":
                name, _, value = next(rest).partition(": ")
                headers[name] = value
            case "-d":
                body = next(rest)
            case "--max-time":
                next(rest)
            case _:
                assert not word.startswith("-"), f"unknown option {word}"
                url = word
    assert url.startswith(SERVER), words
    return Curl(method or ("POST" if body else "GET"), url.removeprefix(SERVER), headers, body)


def curls() -> list[Curl]:
    """The requests of the README, in their order."""
    return [parse_curl(command) for command in shell_commands() if command[0] == "curl"]
