"""A broker that ends during a case: the case fails. The others are played if the probe can start the broker again."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.children import ends_with_me
from bench.peers.cluster import until
from bench.ports import free_port
from bench.probe.broker import Address, NotKafka, Target, meet
from bench.probe.case import CaseVerdict, ProbeCase, case
from bench.probe.cases import chosen
from bench.probe.context import ProbeContext
from bench.probe.play import GONE, play
from bench.probe.probe_command import FAILED, ProbeOptions, run, started
from bench.targets.loader import find
from reference_broker.wire.apis import ApiKey

pytestmark = pytest.mark.live

PROGRAM = Path(__file__).parent / "mortal_broker.py"
METADATA = int(ApiKey.METADATA)
KILLS, BEFORE, AFTER = "handshake/unknown/api", "handshake/api-versions/version-0", "handshake/unknown/leaves-others"
DEATH = "the broker ended with status 3: panic: no handler for API 9999"


@case("metadata/kills", "a test", {}, since="0.8")
def kills(at: ProbeContext) -> None:
    """A request of an unknown API gets a response."""
    at.main.send_bytes(b"\0\0\0\x0a\x27\x0f\0\0\0\0\0\1\0\0", "a request of API 9999")
    at.main.receive_frame()


@case("metadata/harmless", "a test", {METADATA: (1, 1)}, since="0.8")
def harmless(at: ProbeContext) -> None:
    """Metadata gets a response."""
    at.expect("number of brokers", len(at.call(METADATA, {"topics": ()}).brokers), 1)


@case("metadata/restarted", "a test", {METADATA: (1, 1)}, since="0.8", restarts=True)
def restarted(at: ProbeContext) -> None:
    """Metadata gets a response after a restart."""
    at.restart()
    at.expect("number of brokers", len(at.call(METADATA, {"topics": ()}).brokers), 1)


@pytest.fixture
def target_file(tmp_path: Path) -> Path:
    file = tmp_path / "mortal.toml"
    command = json.dumps([sys.executable, str(PROGRAM), "{port}"])
    file.write_text(f'title = "Mortal"\n[node]\ncommand = {command}\n')
    return file


@pytest.fixture
def external() -> Iterator[Address]:
    """The address of such a broker that somebody else started."""
    address = ("127.0.0.1", free_port())
    process = subprocess.Popen(
        [sys.executable, PROGRAM, str(address[1])], stderr=subprocess.DEVNULL, preexec_fn=ends_with_me()
    )
    try:
        until(lambda: _serves(address), 20, "the start of the broker")
        yield address
    finally:
        process.kill()
        process.wait()


def _serves(address: Address) -> bool:
    try:
        meet(address)
    except NotKafka:
        return False
    return True


def test_case_that_ends_the_broker_fails_and_the_others_are_played(target_file: Path, tmp_path: Path) -> None:
    said: list[str] = []
    wanted = ProbeOptions(
        str(target_file), cases=[BEFORE, KILLS, AFTER], json=tmp_path / "results.json", junit=tmp_path / "x"
    )
    assert run(wanted, said.append) == FAILED
    results = {each["id"]: each for each in json.loads((tmp_path / "results.json").read_text())["cases"]}
    assert {name: result["verdict"] for name, result in results.items()} == {
        BEFORE: "pass",
        KILLS: "fail",
        AFTER: "fail",
    }
    assert results[KILLS]["reason"] == DEATH
    assert "  " + DEATH in said
    assert said[-1].endswith("1 pass, 2 fail, the broker ended 2 times")
    assert f"again: ./crucible probe {target_file} --case {KILLS}" in (tmp_path / "x").read_text()


def test_case_beside_others_that_ends_the_broker_is_found(target_file: Path) -> None:
    neighbours = [harmless_named(f"metadata/harmless-{number}") for number in range(40)]
    cases = [*neighbours[:20], kills, *neighbours[20:]]
    with started(find(str(target_file))) as target:
        outcomes = play(meet(target.address), cases, target=target)
    ended = [outcome.case.id for outcome in outcomes if outcome.ended]
    assert ended == [kills.id]
    assert {outcome.verdict for outcome in outcomes if not outcome.ended} == {CaseVerdict.PASS}


def harmless_named(name: str) -> ProbeCase:
    return replace(harmless, id=name)


def test_probe_ends_with_a_broker_that_is_not_ours(external: Address) -> None:
    said: list[str] = []
    host, port = external
    assert run(ProbeOptions(f"{host}:{port}", cases=[BEFORE, KILLS, AFTER]), said.append) == FAILED
    assert any(re.fullmatch(rf"FAIL {KILLS} \(fail, .*\)", each) for each in said)
    (gone,) = [each for each in said if each.startswith(GONE)]
    assert gone.startswith(f"{GONE}{host}:{port} serves nobody since {KILLS}: ")
    assert gone.endswith("; 1 of 3 cases were not played")
    assert not [each for each in said if AFTER in each]


def test_death_beside_other_cases_ends_the_probe_of_a_broker_that_is_not_ours(external: Address) -> None:
    outcomes = play(meet(external), [kills, *chosen([], [BEFORE])])
    assert [outcome.verdict for outcome in outcomes] == [CaseVerdict.FAIL, CaseVerdict.NOT_PLAYED]
    assert all(outcome.is_red(False) for outcome in outcomes[:1])


def test_restart_is_played_only_for_own_broker_with_kept_data(target_file: Path, external: Address) -> None:
    with started(find(str(target_file))) as target:
        (ours,) = play(meet(target.address), [restarted], target=target)
        (forgetful,) = play(meet(target.address), [restarted], target=Target(target.address, target.processes))
    (theirs,) = play(meet(external), [restarted])
    assert [each.verdict for each in (ours, forgetful, theirs)] == [
        CaseVerdict.PASS,
        CaseVerdict.NOT_PLAYED,
        CaseVerdict.NOT_PLAYED,
    ]
    assert "was not started by the probe" in theirs.reason
    assert "loses all that it had" in forgetful.reason
