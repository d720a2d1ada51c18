"""Gather the pages of the documentation site: docs/, the READMEs of all folders, and the files that they link to.

Call ``python -m tools.site_pages``. It writes ``build/site-pages``, from which mkdocs builds ``build/site`` (``nox -s
docs``). Pages link to each other as they do on GitHub. Here links get the places that the targets have on the site:

* ``docs/X`` is at ``X``, unless it is Python code, which mypy would find in the folder a second time
* a README, and any other Markdown file, is at ``rooms/PATH``
* any other file is copied to ``files/PATH.txt``, which browsers show instead of saving it

A link to something that does not exist stops it with one sentence.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from os.path import normpath, relpath
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = ROOT / "build" / "site-pages"
_CODE_OR_LINK: Final = re.compile(r"(?P<code>(?P<ticks>`+).+?(?P=ticks))|(?P<text>\[[^\]]*\])\((?P<target>[^()\s]+)\)")
_FENCE: Final = re.compile(r" *(```+)")


class BrokenLink(Exception):  # noqa: N818 - says what is wrong
    """A page links to something that does not exist."""


def documents(root: Path = ROOT) -> list[PurePosixPath]:
    """Return the tracked Markdown files of the repository, relative to its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return [PurePosixPath(line) for line in listed.stdout.splitlines() if (root / line).exists()]


def place_on_site(path: PurePosixPath) -> PurePosixPath:
    """Return where the site has a file of the repository."""
    if path.parts[:1] == ("docs",) and path.suffix != ".py":
        return path.relative_to("docs")
    return PurePosixPath("rooms", path) if path.suffix == ".md" else PurePosixPath("files", f"{path}.txt")


def page_for_site(text: str, source: PurePosixPath, root: Path = ROOT) -> tuple[str, set[PurePosixPath]]:
    """Return a page's text with the site's links, and the files outside docs/ that it links to.

    ``source`` is the page's path in the repository. Raise BrokenLink.
    """
    copied: set[PurePosixPath] = set()

    def replaced(found: re.Match[str]) -> str:
        target = found["target"]
        if found["code"] or "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path_text, hash_mark, fragment = target.partition("#")
        path = PurePosixPath(normpath(source.parent / path_text))
        if not (root / path).exists() or path.parts[0] == "..":
            raise BrokenLink(f"{source} links to {target}, which does not exist.")
        if (root / path).is_dir():
            path /= "README.md"
            if not (root / path).exists():
                return found["text"][1:-1]
        place = place_on_site(path)
        if place.parts[0] == "files":
            copied.add(path)
        own_folder = place_on_site(source).parent
        return f"{found['text']}({relpath(place, own_folder)}{hash_mark}{fragment})"

    return "".join(
        line if is_code else _CODE_OR_LINK.sub(replaced, line) for line, is_code in lines_with_fences(text)
    ), copied


def lines_with_fences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line with its end, and whether it is part of a fenced block of code."""
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        yield line, bool(fence or found)
        if found and not fence:
            fence = found[1]
        elif found and line.strip() == fence:
            fence = ""


def write(folder: Path = PAGES, root: Path = ROOT) -> int:
    """Write all pages to a folder that is emptied first, and return their number. Raise BrokenLink."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(root / "docs", folder, ignore=shutil.ignore_patterns("*.md", "*.py", "__pycache__"))
    copied: set[PurePosixPath] = set()
    pages = documents(root)
    for source in pages:
        text, files = page_for_site((root / source).read_text(encoding="utf-8"), source, root)
        copied |= files
        page = folder / place_on_site(source)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text, encoding="utf-8")
    for path in copied:
        copy = folder / place_on_site(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, copy)
    return len(pages)


if __name__ == "__main__":
    try:
        write()
    except BrokenLink as broken:
        sys.exit(f"docs: {broken}")
