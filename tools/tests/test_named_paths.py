"""Papers name files, folders, functions and fields that exist."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
JOURNEYS = ROOT / "docs" / "journeys.md"
BROKER = ROOT / "reference_broker"
KAFKA_CLASSES = ROOT / "docs" / "kafka-classes.md"
READMES = sorted(
    ROOT / path
    for path in subprocess.run(
        ["git", "ls-files", "*README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
)
ROOMS = [path for path in READMES if path.is_relative_to(BROKER)]
OTHER_NAMES = ("Protocol", "k06", "k19", "unlike")
"""Names in rooms' READMEs that are not in the broker's code: of a library, the beginning of a file, a key of TOML."""
LIST_HEAD = re.compile(r"(?:files?|folder|path|room)(?: in `(.+)`)?")
"""The head of the first column of a table that lists files, perhaps with the folder in which they are."""


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def names_in_lists(text: str) -> Iterator[str]:
    """Yield the paths that the first column of each list of files names, relative to the folder of the text."""
    head = ""
    for line in text.splitlines():
        first = line.removeprefix("|").split("|")[0].strip() if line.startswith("|") else ""
        if not head or not first:
            head = first
        elif listed := LIST_HEAD.fullmatch(head):
            yield from (f"{listed[1] or ''}{name}" for name in quoted(first))


def is_there(folder: Path, name: str) -> bool:
    """Return whether there is such a file or folder, or a module of this name."""
    return any(folder.glob(name)) or (folder / name).exists() or (folder / f"{name}.py").exists()


@cache
def names_in_code() -> frozenset[str]:
    """Return the names of the broker's folders, modules, classes, functions, fields, parameters and constants, and its
    strings of one word. Names of tests do not count."""
    names = set[str]()
    for path in BROKER.rglob("*.py"):
        if "tests" in path.parts:
            continue
        code = path.read_text()
        names.update((path.stem, path.parent.name))
        names.update(re.findall(r"\b(?:def|class) (\w+)", code), re.findall(r'"(\w+)"', code))
        names.update(re.findall(r"(?:^|[(,]) *(?:self\.)?(\w+)(?::| =)", code, re.MULTILINE))
    return frozenset(names)


def links(text: str) -> list[str]:
    return [each for each in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in each]


def steps() -> list[str]:
    """Return the steps of the journeys, each a row of a table that begins with its number."""
    return re.findall(r"^\| \d+ \| .*", JOURNEYS.read_text(), re.MULTILINE)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_a_readme_lists_or_links_to_exist(readme: Path) -> None:
    text = readme.read_text()
    assert [name for name in (*names_in_lists(text), *links(text)) if not is_there(readme.parent, name)] == []


@pytest.mark.parametrize("readme", ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_of_code_in_the_readme_of_a_room_are_in_the_broker(readme: Path) -> None:
    names = [name for name in quoted(readme.read_text()) if re.fullmatch(r"(?:[A-Z]\w+\.)?[A-Za-z_]\w*", name)]
    parts = {part for name in names for part in name.split(".") if part not in OTHER_NAMES}
    assert sorted(parts - names_in_code()) == []


@pytest.mark.parametrize("page", [CONTRIBUTING, JOURNEYS], ids=lambda path: path.stem)
def test_paths_in_guides_for_contributors_exist(page: Path) -> None:
    text = page.read_text()
    paths = [name for name in quoted(text) if re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?|[\w-]+\.(py|md|toml|yaml)", name)]
    assert len(paths) > 30
    tracked = [path for path in paths if not path.startswith(".venv/")]  # The first call of ./crucible creates that.
    missing = [path for path in tracked if not (ROOT / path).exists() and not (BROKER / path).exists()]
    assert [*missing, *(link for link in links(text) if not (page.parent / link).exists())] == []


def counterparts() -> list[tuple[str, str]]:
    """Return each file and class (or function) that stand for a class of Kafka, in pairs."""
    rows = re.findall(r"^\| `[^|]+\|([^|]*)\|", KAFKA_CLASSES.read_text(), re.MULTILINE)
    named = [each.partition(":") for row in rows for each in row.split(";")]
    return [(path, name) for file, _, names in named for path in quoted(file) for name in quoted(names)]


def test_counterparts_of_classes_of_kafka_are_in_their_files() -> None:
    pairs = counterparts()
    assert len(pairs) > 100
    assert [
        (file, name)
        for file, name in pairs
        if not re.search(rf"^(class|def) {name}\b|^{name}: TypeAlias", (BROKER / file).read_text(), re.MULTILINE)
    ] == []


def test_files_on_the_page_of_classes_of_kafka_exist() -> None:
    paths = [name for name in quoted(KAFKA_CLASSES.read_text()) if name.endswith(".py")]
    assert [path for path in paths if not (BROKER / path).exists()] == []


def test_remarks_on_classes_of_kafka_name_code_that_exists() -> None:
    remarks = re.findall(r"^\| `[^|]+\|[^|]*\|([^|]*)\|", KAFKA_CLASSES.read_text(), re.MULTILINE)
    names = {name for remark in remarks for name in quoted(remark) if re.fullmatch(r"\w+", name)}
    assert "ControllerWriteOperation" in names
    assert sorted(names - names_in_code()) == []


@pytest.mark.parametrize("step", steps(), ids=lambda step: " ".join(quoted(step)[:2]))
def test_functions_of_a_journey_are_in_its_files(step: str) -> None:
    files = [name for name in quoted(step) if name.endswith(".py")]
    code = "".join((BROKER / name if (BROKER / name).exists() else ROOT / name).read_text() for name in files)
    names = [name for name in quoted(step.split("|")[2]) if re.fullmatch(r"(\w+\.)?\w+", name) and name not in files]
    parts = [("class" if part.lstrip("_")[0].isupper() else "def", part) for name in names for part in name.split(".")]
    assert [part for kind, part in parts if not re.search(rf"\b{kind} {part}\b", code)] == []


def test_journey_has_at_most_twelve_steps() -> None:
    numbers = [int(step.split("|")[1]) for step in steps()]
    assert max(numbers) <= 12
    assert numbers.count(1) == 14
