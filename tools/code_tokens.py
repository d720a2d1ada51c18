"""Count the tokens of the code by room.

``python tools/code_tokens.py [REVISION]`` counts source apart from tests, in the working tree or in a revision.
Docstrings, comments, line ends, indentation, and commas before a closing bracket do not count. So two revisions can be
compared, however their lines are broken.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
TOP_LEVEL = "(top level)"
LAYOUT = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
CLOSING = {")", "]", "}"}


def tokens_in(code: str) -> int:
    docstrings = _docstrings(code)
    kept = [string for string in _whole_strings(code) if string.type not in LAYOUT and string.start not in docstrings]
    following = [string.string for string in kept[1:]]
    return len(kept) - sum(
        each.string == "," and after in CLOSING for each, after in zip(kept, following, strict=False)
    )


def _docstrings(code: str) -> set[tuple[int, int]]:
    """Return where the strings begin that are statements: those of modules, classes, functions and values."""
    columns = [line.encode() for line in code.splitlines()]
    return {
        (node.lineno, len(columns[node.lineno - 1][: node.col_offset].decode()))
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def _whole_strings(code: str) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens, with every f-string as one. Python 3.12 and newer take it apart, older ones do not."""
    inside = 0
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        kind = tokenize.tok_name[token.type]
        if inside == 0:
            yield token
        inside += (kind == "FSTRING_START") - (kind == "FSTRING_END")


def files_of(revision: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each Python file. If the revision is empty these are the files of the working tree."""
    if revision:
        packed = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            for member in archive:
                file = archive.extractfile(member)
                if file is not None and member.name.endswith(".py"):
                    yield member.name, file.read().decode()
        return
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    for name in subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).exists():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def counted(revision: str) -> tuple[Counter[str], Counter[str]]:
    """Return the tokens of source, and those of tests, by room."""
    source, tests = Counter[str](), Counter[str]()
    for name, code in files_of(revision):
        parts = PurePosixPath(name).parts
        room = parts[0] if len(parts) > 1 else TOP_LEVEL
        (tests if "tests" in parts or parts[-1] == "conftest.py" else source)[room] += tokens_in(code)
    return source, tests


def main() -> None:
    parser = argparse.ArgumentParser(description="Tokens of code by room.")
    parser.add_argument(
        "revision", nargs="?", default="", help="the revision of git to count (default: the working tree)"
    )
    source, tests = counted(parser.parse_args().revision)
    rows = [(room, source[room], tests[room]) for room in sorted({*source, *tests})]
    for row in (("room", "source", "tests"), *rows, ("total", source.total(), tests.total())):
        print("{:20}{:>10}{:>10}".format(*row))  # noqa: T201


if __name__ == "__main__":
    main()
