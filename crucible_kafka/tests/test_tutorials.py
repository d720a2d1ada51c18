"""The tutorials do what they say: their code and commands run, and print what the pages show.

A page's blocks run in order in one folder, as a reader would. A comment directly above a block says what it is:

* ``<!-- file: NAME -->``: the block is saved. ``<!-- append: NAME -->``: it is added to the file.
* ``<!-- exit: N -->``: the last command of the block ends with this code instead of 0.
* ``<!-- nightly: REASON -->``: it takes too long for CI. Here its commands are parsed, and the night runs them.
* ``<!-- parsed: REASON -->``: its commands are only parsed.

A block of ``text`` is the output of the block before, where ``...`` matches anything; further lines may be between.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from bench.ports import free_port
from crucible_kafka.cli import main
from tools.site_pages import lines_with_fences

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
COMMAND_LIMIT_S = 90
NIGHTLY_LIMIT_S = 900
END_LIMIT_S = 10
LANGUAGES_OF_FILES = {"python", "toml", "text"}
WORDS = ("file", "append", "exit", "nightly", "parsed")
_DIRECTIVE = re.compile(r"<!-- (\w+): (.+) -->")
_OWN_PORTS = ("9092", "9192")
"""The ports in the tutorials. A test takes free ones."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, and the comment above it."""

    line: int
    """The number of the line of its fence, from 1."""
    language: str
    word: str
    """The kind that the comment states; empty without a comment."""
    argument: str
    text: str

    def __str__(self) -> str:
        return f"line {self.line} ({self.language})"


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, in order."""
    above, opened, inside = "", 0, list[str]()
    language = ""
    for number, (line, is_code) in enumerate(lines_with_fences(page), start=1):
        if is_code and not opened:
            opened, language, inside = number, line.strip().strip("`"), []
        elif is_code and re.fullmatch(r"```+", line.strip()):
            match = _DIRECTIVE.fullmatch(above)
            word, argument = (match[1], match[2]) if match else ("", "")
            yield Block(opened, language, word, argument, "".join(inside))
            above, opened = "", 0
        elif is_code:
            inside.append(line)
        else:
            above = line.strip()


class Reader:
    """Someone who follows a tutorial in a folder, with a terminal."""

    def __init__(self, folder: Path, plays_nightly: bool) -> None:
        self.folder = folder
        self._plays_nightly = plays_nightly
        self._ports = {port: str(free_port()) for port in _OWN_PORTS}
        self._groups: list[int] = []
        self._output = ""
        for name, words in {"crucible": [str(ROOT / "crucible_kafka")], "python": []}.items():
            program = folder / name
            program.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *words])} "$@"\n')
            program.chmod(0o755)

    def follow(self, block: Block) -> None:
        """Save the file, run the commands, or compare the output. Raise AssertionError."""
        text = self._with_own_ports(block.text)
        if block.word in ("file", "append"):
            path = self.folder / block.argument
            path.write_text((path.read_text() + "\n\n" if block.word == "append" else "") + text)
        elif block.language == "sh":
            for command in commands(text):
                parse(command)
            if block.word != "parsed" and (block.word != "nightly" or self._plays_nightly):
                self._run(block, text)
            else:
                self._output = ""
        else:
            assert block.language == "text", f"{block} is neither saved nor run"
            if self._output:
                missing = missing_line(self._output, text)
                assert not missing, f"{block} shows {missing!r}, and this came:\n{self._output}"

    def _with_own_ports(self, text: str) -> str:
        return re.sub(r"\b(" + "|".join(self._ports) + r")\b", lambda found: self._ports[found[1]], text)

    def _run(self, block: Block, text: str) -> None:
        """Run the commands of a block. What they leave in the background runs until ``close``."""
        limit_s = NIGHTLY_LIMIT_S if block.word == "nightly" else COMMAND_LIMIT_S
        output = self.folder / "output.txt"
        variables = {
            "PATH": f"{self.folder}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTEST_ADDOPTS": "-p crucible_kafka.pytest_plugin -p no:locust -p no:cacheprovider -rf",
            "COLUMNS": "400",
        }
        with output.open("w+") as file:
            process = subprocess.Popen(
                ["bash", "-ec", text],
                cwd=self.folder,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.append(process.pid)
            code = process.wait(limit_s)
        self._output = output.read_text()
        expected = int(block.argument) if block.word == "exit" else 0
        assert code == expected, f"{block} ended with {code}, not {expected}:\n{text}\n{self._output}"
        assert self._output or ">" in text, f"{block} printed nothing:\n{text}"

    def close(self) -> None:
        """End what still runs: in order, so that a run ends its Spark session, and then at once."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for group in self._groups:
                with suppress(ProcessLookupError):
                    os.killpg(group, number)
            deadline = time.monotonic() + END_LIMIT_S
            while any(map(is_alive, self._groups)) and time.monotonic() < deadline:
                time.sleep(0.05)


def is_alive(group: int) -> bool:
    """Return whether a process group has a process."""
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


def commands(text: str) -> list[list[str]]:
    """Return the words of each line that calls ``./crucible``, without redirections."""
    lines = [line for line in text.splitlines() if line.startswith("./crucible ")]
    return [shlex.split(re.split(r" \d?[>|&]", line)[0], comments=True)[1:] for line in lines]


def parse(words: Sequence[str]) -> None:
    """Let the command line parse a command, and run nothing. Raise click.UsageError."""
    context = main.make_context("./crucible", list(words))
    while isinstance(context.command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, command, rest = context.command.resolve_command(context, rest)
        assert command is not None
        context = command.make_context(name, rest, parent=context)


def missing_line(output: str, expected: str) -> str:
    """Return the first line of ``expected`` that does not follow in the output; empty if all do."""
    rest = output.splitlines()
    for line in expected.splitlines():
        pattern = ".*".join(map(re.escape, line.split("...")))
        found = next((index for index, each in enumerate(rest) if re.fullmatch(pattern, each)), None)
        if found is None:
            return line
        rest = rest[found + 1 :]
    return ""


def follow(page: Path, folder: Path, plays_nightly: bool) -> None:
    reader = Reader(folder, plays_nightly)
    try:
        for block in blocks(page.read_text(encoding="utf-8")):
            reader.follow(block)
    finally:
        reader.close()


@pytest.mark.live
@pytest.mark.rotated(4)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tutorial_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # The command line checks that files exist.
    follow(page, tmp_path, plays_nightly=False)


@pytest.mark.live
@pytest.mark.nightly
@pytest.mark.timeout(3 * NIGHTLY_LIMIT_S)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "<!-- nightly: " in page.read_text()], ids=lambda page: page.stem
)
def test_tutorial_does_what_it_says_with_all_that_takes_long(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    follow(page, tmp_path, plays_nightly=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_block_of_a_tutorial_is_saved_run_or_compared(page: Path) -> None:
    found = list(blocks(page.read_text(encoding="utf-8")))
    assert found
    for block in found:
        if block.word in ("file", "append"):
            assert block.language in LANGUAGES_OF_FILES, block
        else:
            assert block.language in ("sh", "text"), f"{block}: say in a comment above it which file it is"
        assert block.word in ("", *WORDS), block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_comment_of_a_tutorial_belongs_to_a_block(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- ") == sum(bool(block.word) for block in blocks(text))


BROKEN = {
    "a command that fails": "```sh\nfalse\n```\n",
    "another exit code": "<!-- exit: 1 -->\n```sh\necho x\n```\n",
    "an unknown option": "<!-- parsed: it shows what an option does -->\n```sh\n./crucible sim 14 --sed 1\n```\n",
    "an unknown command": "<!-- parsed: it shows what a command does -->\n```sh\n./crucible simm 14\n```\n",
    "another output": "```sh\necho one; echo two\n```\n```text\none\nthree\n```\n",
    "output in another order": "```sh\necho one; echo two\n```\n```text\ntwo\none\n```\n",
    "code that fails": "<!-- file: a.py -->\n```python\nassert 1 == 2\n```\n```sh\npython a.py\n```\n",
    "code that is not saved": "```python\nassert 1 == 1\n```\n",
}


@pytest.mark.live
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_wrong_block_is_seen(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises((AssertionError, click.UsageError)):
        follow(page, tmp_path, plays_nightly=False)


@pytest.mark.live
def test_output_may_have_lines_between_and_anything_for_dots(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nprintf '1 passed in 3 s\\nx\\nend\\n'\n```\n```text\n1 passed in ...\nend\n```\n")
    follow(page, tmp_path, plays_nightly=False)
