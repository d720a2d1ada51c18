"""Write the file tables of READMEs from the docstrings of modules.

Call ``python -m tools.file_tables``. A table is placed between ``<!-- files -->`` and ``<!-- end of files -->``. It
lists the modules and packages in the folder of its README, in alphabetical order, without tests, each with the first
sentence of its docstring. Of a long sentence it has only what precedes the colon, because the module itself has the
details. A package is described by the title of its own README, if that says more than the name. A test fails while a
table is not up to date.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- files -->\n", "<!-- end of files -->"
_TABLE = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
_SENTENCE = re.compile(r"(.+?\.)(?=\s|$)", re.DOTALL)
_REFERENCES = re.compile(r" \((?:[^()\s]+\s+){3,}[^()\s]+\)$")
"""Classes of Kafka and the like in parentheses at the end. A KIP alone is shorter, and stays."""
SHORT_WORDS = 9
MIN_WORDS = 3
_NOT_LISTED = {"__init__.py", "__main__.py", "conftest.py"}


def readmes(root: Path = ROOT) -> list[Path]:
    """Return the READMEs of the repository that have such a table."""
    listed = subprocess.run(["git", "ls-files", "*README.md"], cwd=root, capture_output=True, text=True, check=True)
    return [root / path for path in listed.stdout.split() if BEGIN in (root / path).read_text(encoding="utf-8")]


def updated(readme: Path) -> str:
    """Return the README's text with a new table."""
    rows = "".join(f"| `{name}` | {text} |\n" for name, text in _rows(readme.parent))
    table = f"{BEGIN}| file | contents |\n| --- | --- |\n{rows}{END}"
    return _TABLE.sub(lambda _: table, readme.read_text(encoding="utf-8"))


def _rows(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.name not in _NOT_LISTED:
            yield path.name, shortened(first_sentence(path))
        elif path.name != "tests" and (path / "__init__.py").exists():
            title = _title(path / "README.md")
            yield f"{path.name}/", shortened(title or first_sentence(path / "__init__.py"))


def _title(readme: Path) -> str:
    """Return what a README's title says after the name of its folder, or an empty string."""
    if not readme.exists():
        return ""
    return readme.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(": ")[2]


def first_sentence(module: Path) -> str:
    """Return the first sentence of a module's docstring in one line, without its period. Raise ValueError if the
    module has no docstring."""
    paragraph = (ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    if not paragraph:
        raise ValueError(f"{module} has no docstring")
    sentence = _SENTENCE.match(paragraph)
    text = " ".join((sentence[1] if sentence else paragraph).split()).removesuffix(".")
    return text.replace("``", "`").replace("|", "\\|")


def shortened(sentence: str) -> str:
    """Return a long sentence without what follows its colon, unless that is code, or its beginning names nothing."""
    if len(sentence.split()) <= SHORT_WORDS:
        return sentence
    head, _, details = sentence.partition(": ")
    is_whole = details.startswith("`") or head.startswith("`") or len(head.split()) < MIN_WORDS
    return _REFERENCES.sub("", sentence if is_whole else head)


if __name__ == "__main__":
    for path in readmes():
        path.write_text(updated(path), encoding="utf-8")
