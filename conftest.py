"""The parts that tests fall into, what a test without marks may not do, and how long Hypothesis searches."""

import gc
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
from hypothesis import settings

from scenarios.ledger import turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from reports.collect import Findings
    from reports.manifest import Manifest
    from reports.verdict import Verdict

PARTS = ("quick", "thorough", "simulated", "live", "spark")
TURNS = {"thorough": 8, "simulated": 12, "live": 2, "spark": 4}
"""Parts of which a commit plays one test in this number, and a night all. All would take most of CI's time."""
QUESTIONS = ("git", "uname")
"""Commands that any test may start, because they only query the commit and the machine."""

_OF_ANOTHER_PART = re.compile(r"^pytestmark = .*\bmark\.(?:live|peer|spark|simulated|thorough)\b", re.MULTILINE)

# Commands that tests call would print annotations of results that are meant to be red.
os.environ.pop("GITHUB_ACTIONS", None)

# No limit for one example: machines are busy, and pytest-timeout guards the whole test.
settings.register_profile("unhurried", deadline=None, max_examples=40)
settings.register_profile("nightly", deadline=None, max_examples=1000)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "unhurried")
settings.load_profile(PROFILE)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "only tests of this part (or these); marks decide in which part a test is"
    parser.addoption("--part", action="append", choices=PARTS, default=[], help=text)
    text = "only the test files of this share (such as 1/2), for processes side by side"
    parser.addoption("--share", type=share_named, default=(1, 1), help=text)


def share_named(text: str) -> tuple[int, int]:
    """Return a share's number and the number of shares: "1/2" is the first one of two. Raise ValueError."""
    number, shares = map(int, text.split("/"))
    if not 1 <= number <= shares:
        raise ValueError(f"there is no share {text}")
    return number, shares


def in_share(file: str, share: tuple[int, int]) -> bool:
    """Say whether a test file, by its path from the root of the project, is in the share."""
    number, shares = share
    return crc32(file.encode()) % shares == number - 1


def part_of(item: pytest.Item) -> str:
    """Return the part of a test. One that starts processes is live, even if Spark judges it afterwards."""
    if item.get_closest_marker("peer"):
        return "live"
    return next((part for part in ("live", "spark", "simulated", "thorough") if item.get_closest_marker(part)), "quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files of another share, and those that have no test of the chosen parts, since importing all test files
    takes 20 s. Few have tests that are not quick, and a file whose ``pytestmark`` is that of another part has no quick
    ones."""
    marks = {part: (f"mark.{part}",) for part in PARTS} | {"live": ("mark.live", "mark.peer")}
    wanted = config.getoption("--part")
    if collection_path.suffix != ".py":
        return None
    if not in_share(_from_root(collection_path, config), config.getoption("--share")):
        return True
    if not wanted:
        return None
    source = collection_path.read_text(encoding="utf-8")
    if "quick" in wanted:
        return True if wanted == ["quick"] and _OF_ANOTHER_PART.search(source) else None
    return None if any(mark in source for part in wanted for mark in marks[part]) else True


def _from_root(path: Path, config: pytest.Config) -> str:
    return os.path.relpath(path, config.rootpath)


def due_cases(cases: Sequence[str], parts: int) -> set[str]:
    """Return the cases that the tests of this commit play: each ``parts``-th one, in an order of their own, and at
    least one. ``parts`` commits in a row play all of them."""
    parts = min(parts, len(cases))
    return {*sorted(cases, key=lambda case: crc32(case.encode()))[turn() % parts :: parts]}


def rotation_of(nodeid: str, parts: int, group: str = "") -> tuple[str, int]:
    """Return what the test shares with all tests that take turns with it: the cases of one test, or a whole group."""
    return group or nodeid.partition("[")[0], parts


def turns_of(nodeid: str, marks: Sequence[tuple[Any, ...]], part: str, by_parts: bool) -> Sequence[tuple[Any, ...]]:
    """Return the arguments of ``rotation_of`` for a test: those of its marks, or else what its part has by itself.
    Thorough tests take turns with those of their folder, the others with those of their file."""
    if marks or not by_parts or part not in TURNS:
        return marks
    file = nodeid.partition("::")[0]
    return [(TURNS[part], file.rpartition("/")[0] if part == "thorough" else file)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the rotated cases that are not due, which the night plays. If parts are chosen, as ``crucible test`` does,
    the tests of some parts take turns, too (nights play all of them), and tests with Spark come last: its process stays
    and would slow down live tests."""
    share = config.getoption("--share")
    items[:] = [item for item in items if in_share(_from_root(item.path, config), share)]
    by_parts = bool(config.getoption("--part")) and PROFILE != "nightly"
    rotated: dict[tuple[str, int], list[pytest.Item]] = {}
    by_commits = [item for item in items if item.get_closest_marker("nightly") is None]
    for item in () if config.getoption("--benchmark-only", False) else by_commits:
        marks = [mark.args for mark in item.iter_markers("rotated")]
        for args in turns_of(item.nodeid, marks, part_of(item), by_parts):
            rotated.setdefault(rotation_of(item.nodeid, *args), []).append(item)
    for (_, parts), cases in rotated.items():
        due = due_cases([each.nodeid for each in cases], parts)
        for item in cases:
            if item.nodeid not in due:
                item.add_marker(pytest.mark.nightly)
    wanted = config.getoption("--part")
    if wanted:
        config.hook.pytest_deselected(items=[item for item in items if part_of(item) not in wanted])
        chosen = [item for item in items if part_of(item) in wanted]
        items[:] = sorted(chosen, key=_place)


def _place(item: pytest.Item) -> tuple[bool, bool]:
    """Return the place of a test among others: those whose histories are judged in one go come last, because some of
    them are played live, for which the live tests beside them should have ended."""
    together = "found_in_all_files" in getattr(item, "fixturenames", ())
    return item.get_closest_marker("spark") is not None, together


def pytest_collection_finish() -> None:
    """Keep the garbage collector from examining the collected tests again and again, since they stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let only tests with such a mark start processes."""
    if part_of(item) in ("live", "spark"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", _start_only_queries)
        return (yield)


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """One Spark session for all tests: starting one takes five seconds, and its first judgement half a minute more."""
    from reports.spark import spark_session

    with spark_session("crucible-tests") as session:
        yield session


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run's folder, and what Spark found in it."""

    folder: Path
    manifest: "Manifest"
    findings: "Findings"

    def verdict(self) -> "Verdict":
        from reports.decide import decide

        return decide(self.manifest, self.findings, self.folder)

    def report(self) -> "Verdict":
        """Return the verdict, and write the page and the other files of its report."""
        from reports.judge import _report

        return _report(self.manifest, self.findings, self.folder, self.folder / "report", None)


@pytest.fixture(scope="session")
def found_in_all_files(
    request: pytest.FixtureRequest, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Mapping[str, JudgedRun]]:
    """The findings in the histories of all selected test files, by files and names. The function ``write_histories`` or
    ``play_histories`` of a file makes those of the file's selected tests. Spark judges all in one go, since it plans
    for longer than it computes over a few histories."""
    from reports.judge import _findings, silent
    from reports.manifest import read_manifest

    modules: dict[Any, list[pytest.Function]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function):
            modules.setdefault(item.module, []).append(item)
    written: dict[str, Mapping[str, Path]] = {}
    for module, items in modules.items():
        if hasattr(module, "write_histories"):
            written[module.__name__] = module.write_histories(tmp_path_factory.mktemp("histories"), items)
        elif hasattr(module, "play_histories"):
            written[module.__name__] = module.play_histories(tmp_path_factory.mktemp("runs"), items)
    folders = [folder for some in written.values() for folder in some.values()]
    manifests = [read_manifest(folder) for folder in folders]
    rows = map(JudgedRun, folders, manifests, _findings(folders, manifests, spark, silent))
    return {module: {name: next(rows) for name in some} for module, some in written.items()}


@pytest.fixture(scope="module")
def found_by_name(
    request: pytest.FixtureRequest, found_in_all_files: Mapping[str, Mapping[str, JudgedRun]]
) -> Mapping[str, JudgedRun]:
    """The findings in the histories that this test file's ``write_histories`` has written, by their names."""
    return found_in_all_files[request.module.__name__]


@pytest.fixture(autouse=True)
def no_signal_stays_blocked() -> Iterator[None]:
    """Fail a test that leaves a signal blocked. Processes of later tests would inherit that, and could not be ended."""
    yield
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    assert not blocked


_start = subprocess.Popen.__init__


def _start_only_queries(self: "subprocess.Popen[Any]", words: Sequence[str], *others: Any, **options: Any) -> None:
    if words[0] not in QUESTIONS:
        pytest.fail(f"this test starts a process, so it must be marked live: {' '.join(map(str, words))}")
    _start(self, words, *others, **options)
