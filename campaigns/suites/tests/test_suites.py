"""Suite files, the output of runs, and the failures that count."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.cluster import PeerCluster, System
from campaigns.suites import play as playing
from campaigns.suites.card import Card, keep, kept, page
from campaigns.suites.play import Result, run_on
from campaigns.suites.suite import (
    FOLDER,
    Allowance,
    Replacement,
    Suite,
    SuiteError,
    SuiteOutcome,
    bundled,
    load,
    outcomes,
)

SUITE = Suite("mine", "Mine", "go", "example.org/mine", "v1", ("true",), "go", ("-run={test}",))


def go(*events: tuple[str, str]) -> str:
    return "\n".join(json.dumps({"Package": "a/mine", "Test": test, "Action": action}) for action, test in events)


@pytest.mark.parametrize("name", bundled())
def test_each_bundled_suite_can_be_read(name: str) -> None:
    suite = load(FOLDER / f"{name}.toml")
    assert suite.command
    assert all(each.reason and each.since for each in suite.allow)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("title = 1", "registry is missing"),
        ("comand = []", "unknown key comand"),
        ("title", "mine.toml: "),
    ],
)
def test_wrong_file_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SuiteError, match=sentence):
        load(path)


def test_unknown_suite_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(SuiteError, match="kafka-go"):
        load(FOLDER / "nosuch.toml")


def test_go_leaf_tests_are_counted_and_unfinished_one_fails() -> None:
    output = (
        go(("run", "TestA"), ("run", "TestA/one"), ("pass", "TestA/one"), ("pass", "TestA"), ("run", "TestB"))
        + "\nnot JSON\n"
    )
    assert outcomes("go", output) == {"mine.TestA/one": SuiteOutcome.PASSED, "mine.TestB": SuiteOutcome.FAILED}


def test_go_package_that_is_not_built_has_failed() -> None:
    output = json.dumps({"Package": "a/mine", "Action": "fail"})
    assert outcomes("go", output) == {"mine (not built)": SuiteOutcome.FAILED}


def test_libtest_names_begin_with_the_binary() -> None:
    output = (
        "     Running unittests src/lib.rs (target/debug/deps/lib-1)\n"
        "test codec ... ok\n"
        "     Running tests/client.rs (target/debug/deps/client-1)\n"
        "test plain ... FAILED\ntest tls ... ignored, no TLS\n"
    )
    assert outcomes("libtest", output) == {
        "lib::codec": SuiteOutcome.PASSED,
        "client::plain": SuiteOutcome.FAILED,
        "client::tls": SuiteOutcome.SKIPPED,
    }


def test_librdkafka_counts_the_rows_of_its_table() -> None:
    output = (
        "%4|1700000000.000|x| a line of a log that says PASSED\n"
        "|\x1b[36m <MAIN>                                   |    RUNNING |  12.000s \x1b[0m|\n"
        "|\x1b[32m 0001_multiobj                            |     PASSED |   1.200s \x1b[0m|\n"
        "|\x1b[31m 0081_admin                               |     FAILED |   1.200s \x1b[0m|\x1b[31m it broke\x1b[0m\n"
        "|\x1b[35m 0093_holb                                |    RUNNING |   9.000s \x1b[0m|\n"
        "|\x1b[36m 0034_offset_reset                        |    SKIPPED |   0.000s \x1b[0m|\x1b[36m no\x1b[0m\n"
        "|\x1b[33m 8000_idle                                |        DNS |   0.000s \x1b[0m|\n"
    )
    assert outcomes("librdkafka", output) == {
        "0001_multiobj": SuiteOutcome.PASSED,
        "0081_admin": SuiteOutcome.FAILED,
        "0093_holb": SuiteOutcome.FAILED,
        "0034_offset_reset": SuiteOutcome.SKIPPED,
    }


def test_failure_is_red_unless_it_is_allowed_or_kafka_fails_too() -> None:
    ours = {
        "here": SuiteOutcome.FAILED,
        "there": SuiteOutcome.FAILED,
        "acl": SuiteOutcome.FAILED,
        "fine": SuiteOutcome.PASSED,
    }
    suite = replace(SUITE, allow=(Allowance("ac.", "no ACLs are served", "2026-11-29"),))
    alone = Result(suite, ours)
    assert alone.red == ["here", "there"]
    beside = Result(suite, ours, {"there": SuiteOutcome.FAILED, "here": SuiteOutcome.PASSED})
    assert beside.red == ["here"]
    card = page([Card.of(beside, "today")], [suite, replace(suite, title="Another")])
    assert "| Mine | v1 | 1 | 0 | 3 | 1 | 1 | 1 | today |" in card
    assert "Not played yet: Another." in card
    assert "| `here` | **red** |" in card
    assert "| `acl` | no ACLs are served |" in card


def test_suites_that_were_played_by_hand_have_a_table_of_their_own() -> None:
    by_hand = Card("Third", "v3", "today", 5, 0, {"a": "no ACLs", "b": "no ACLs", "c": ""}, by_hand=True)
    nightly, _, own = page([Card("Mine", "v1", "today", 1, 0, {}), by_hand], []).partition("## Played once")
    assert "Third" not in nightly
    assert "Mine" not in own
    assert "| Third | v3 | 5 | 0 | 3 | 0 | 2 | 1 | today |" in own
    assert "| Third | no ACLs | 2 |" in own
    assert "| Third | **red** | 1 |" in own


def test_suite_that_is_played_replaces_its_own_card_only(tmp_path: Path) -> None:
    first, second = Card("Mine", "v1", "yesterday", 1, 0, {}), Card("Other", "v1", "yesterday", 2, 0, {"here": ""})
    keep("mine", first, tmp_path)
    keep("other", second, tmp_path)
    keep("mine", replace(first, seen="today", passed=3), tmp_path)
    assert kept(tmp_path) == [replace(first, seen="today", passed=3), second]


def test_allowance_covers_whole_names_only() -> None:
    assert not Allowance("acl", "", "").covers("acls")


@contextmanager
def no_nodes(folder: Path, nodes: int, config: object, advertised: object = ()) -> Iterator[PeerCluster]:  # noqa: ARG001
    yield PeerCluster("nothing", [])


@pytest.mark.live
def test_run_replaces_addresses_in_a_copy_and_leaves_the_fetched_suite_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "address").write_text("at localhost:9092", encoding="utf-8")
    event = go(("run", "TestA"), ("pass", "TestA"))
    (source / "events").write_text(event, encoding="utf-8")
    suite = replace(
        SUITE,
        command=("sh", "-c", "cat events; echo; cat address"),
        replace=(Replacement("addr*", "localhost:9092", "[{bootstrap}]"),),
    )
    found = run_on(suite, source, System("nothing", no_nodes), tmp_path / "logs")
    assert found == {"mine.TestA": SuiteOutcome.PASSED}
    assert (tmp_path / "logs" / "mine-nothing.log").read_text(encoding="utf-8").endswith("at []")
    assert (source / "address").read_text(encoding="utf-8") == "at localhost:9092"


@pytest.mark.live
def test_single_test_adds_arguments_to_command(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    suite = replace(SUITE, command=("echo",))
    for test, words in (("TestA", "-run=TestA\n"), ("", "\n")):
        run_on(suite, source, System("nothing", no_nodes), tmp_path / "logs", test)
        assert (tmp_path / "logs" / "mine-nothing.log").read_text(encoding="utf-8") == words


def test_replacement_that_hits_nothing_is_an_error(tmp_path: Path) -> None:
    suite = replace(SUITE, replace=(Replacement("**/*.go", "localhost:9092", ""),))
    with pytest.raises(SuiteError, match="does not occur"):
        run_on(suite, tmp_path, System("nothing", no_nodes), tmp_path.parent / "logs")


@pytest.mark.live
def test_suite_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "ENDED_WITHIN_S", 5.0)
    source = tmp_path / "source"
    source.mkdir()
    suite = replace(SUITE, command=("sleep", "60"), limit_s=0.1)
    assert run_on(suite, source, System("nothing", no_nodes), tmp_path / "logs") == {}
    assert "stopped after 0.1 s" in (tmp_path / "logs" / "mine-nothing.log").read_text(encoding="utf-8")
