"""Pages of the site: each has its place in the navigation, and each link leads somewhere."""

import re
from pathlib import Path, PurePosixPath

import pytest

from tools.site_pages import ROOT, BrokenLink, documents, page_for_site, place_on_site, write

NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]


def test_each_page_of_the_documentation_is_in_the_navigation_once() -> None:
    named = sorted(re.findall(r"[\w./-]+\.md$", NAVIGATION, re.MULTILINE))
    pages = [str(place_on_site(path)) for path in documents() if path.parts[0] == "docs"]
    assert [name for name in named if not name.startswith("rooms/")] == sorted(pages)


def test_all_pages_are_written_and_each_link_leads_somewhere(tmp_path: Path) -> None:
    assert write(tmp_path / "pages") == len(documents()) > 100
    assert not [*(tmp_path / "pages").rglob("*.py")], "mypy finds a module twice"
    for page in (tmp_path / "pages").rglob("*.md"):
        text = re.sub(r"(```+).*?\1|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^()\s#]+)[^()\s]*\)", text):
            assert "://" in target or (page.parent / target).exists(), (page, target)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("docs/a.md", "docs/b/c.md", "room/README.md", "bare/x.py", "room/code.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("docs/a.md", "[x](b/c.md#part)", "[x](b/c.md#part)"),
        ("docs/a.md", "[x](../room/README.md)", "[x](rooms/room/README.md)"),
        ("docs/b/c.md", "[x](../../room)", "[x](../rooms/room/README.md)"),
        ("room/README.md", "![x](../docs/a.md)", "![x](../../a.md)"),
        ("docs/a.md", "[x](../bare)", "x"),
        ("docs/a.md", "[x](https://example.org/y)", "[x](https://example.org/y)"),
        ("docs/a.md", "`[x](none.md)`", "`[x](none.md)`"),
        ("docs/a.md", "```\n[x](none.md)\n```\n", "```\n[x](none.md)\n```\n"),
    ],
)
def test_links_lead_to_the_places_on_the_site(root: Path, source: str, link: str, expected: str) -> None:
    assert page_for_site(link, PurePosixPath(source), root)[0] == expected


def test_file_without_a_page_is_copied(root: Path) -> None:
    text, copied = page_for_site("[x](code.py)", PurePosixPath("room/README.md"), root)
    assert (text, copied) == ("[x](../../files/room/code.py.txt)", {PurePosixPath("room/code.py")})


@pytest.mark.parametrize("link", ["[x](none.md)", "[x](../../outside.md)"])
def test_broken_link_is_refused(root: Path, link: str) -> None:
    with pytest.raises(BrokenLink, match=r"docs/a\.md links to"):
        page_for_site(link, PurePosixPath("docs/a.md"), root)
