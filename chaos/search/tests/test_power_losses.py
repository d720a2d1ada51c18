"""Power losses before every disk operation: the kinds pass, their mutants do not, and a violation can be repeated."""

from random import Random

import pytest

from chaos.checks.log.log_folders import (
    contradictions,
    false_claims,
    folder_of,
    replayed,
    rows_of,
    segments_of,
    snapshot_rows,
)
from chaos.mutants.mutant import applied
from chaos.mutants.power_losses import KILLED_BY
from chaos.search.power_loss_logs import DIRECTORY, PlainLog, ProducersOfALog, TransactionsOfALog
from chaos.search.power_losses import FIXED, KINDS, NOTHING, LossViolation, kind_of, lose, search_violation
from chaos.sim.disk import SimDisk

PAIRS = [(kind, mutant) for kind, mutants in KILLED_BY.items() for mutant in mutants]


@pytest.mark.simulated
@pytest.mark.clause("P-1", "P-6")
def test_log_loses_nothing_by_a_power_loss_before_any_operation() -> None:
    violations = search_violation(PlainLog)
    assert violations.violation is None, violations.violation
    assert violations.points > 150
    assert violations.losses == violations.points * 14
    assert violations.resumes > 3000


@pytest.mark.simulated
def test_killed_process_leaves_nothing_that_a_power_loss_turns_into_damage() -> None:
    violations = search_violation(kind_of("tier"), ("killed", "bytes"))
    assert violations.violation is None, violations.violation


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in KINDS if name != "log"])
def test_no_kind_loses_anything(name: str) -> None:
    violations = search_violation(kind_of(name))
    assert violations.violation is None, violations.violation


@pytest.mark.simulated
@pytest.mark.rotated(15)
@pytest.mark.parametrize(("kind", "mutant"), PAIRS, ids=[f"{kind}-{mutant.name}" for kind, mutant in PAIRS])
def test_kind_kills_its_mutants_and_the_violation_can_be_repeated(kind: str, mutant: object) -> None:
    with applied(mutant) as in_place:  # type: ignore[arg-type]
        violation = search_violation(kind_of(kind)).violation
        assert in_place is not None
        assert in_place.calls
        assert isinstance(violation, LossViolation), "the mutant survives"
        again = search_violation(kind_of(kind), (violation.outcome,), violation.point).violation
    assert again == violation
    assert f"--point {violation.point}" in violation.command


def test_each_kind_has_a_mutant() -> None:
    assert KILLED_BY.keys() == KINDS.keys()
    assert all(KILLED_BY.values())


def test_fork_loses_by_itself() -> None:
    disk = SimDisk(Random(0))
    disk.write("a/kept", b"1")
    disk.make_durable("a/kept")
    disk.append("a/kept", [b"23"])
    disk.write("a/new", b"4")
    disk.truncate("a/kept", 0)
    left = {name: dict(lose(disk, name, "").all_files()) for name in FIXED}
    assert left["nothing"] == {"a/kept": b"1"}
    assert left["all"] == {"a/kept": b"", "a/new": b"4"}
    assert left["all-undone"] == {"a/kept": b"1", "a/new": b"4"}
    assert left["names"] == {"a/kept": b"", "a/new": b""}
    assert left["zeros"] == {"a/kept": b"", "a/new": b"\0"}
    assert dict(disk.all_files()) == {"a/kept": b"", "a/new": b"4"}
    disk.make_durable("a/new")
    assert dict(lose(disk, NOTHING, "").all_files()) == {"a/kept": b"1", "a/new": b"4"}


def _folder(script: type[PlainLog] | type[ProducersOfALog] | type[TransactionsOfALog]) -> dict[str, bytes]:
    life = script(SimDisk(Random(0)))
    life.play()
    return folder_of(life.disk.all_files(), DIRECTORY)


def _found(folder: dict[str, bytes]) -> list[str]:
    """Return the contradictions of the files, if the log begins where its first segment does and had nothing before."""
    segments = segments_of(folder)
    batches = [batch.data for segment in segments for batch in segment.batches]
    return list(contradictions(folder, [], batches, segments[0].base))


def test_side_files_that_agree_with_their_batches_are_accepted_and_each_damage_is_seen() -> None:
    folder = _folder(TransactionsOfALog)
    assert _found(folder) == []
    for suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        name = max((name for name in folder if name.endswith(suffix)), key=lambda name: len(folder[name]))
        data = folder[name]
        flipped = data[:-1] + bytes([data[-1] ^ 1])
        if suffix == ".snapshot":
            flipped = _sealed(flipped)
        assert any(name in each for each in _found(folder | {name: flipped})), name
    epochs = rows_of(folder, "leader-epoch-checkpoint")
    assert epochs is not None
    later = [*epochs[:-1], epochs[-1].split()[0] + " 1000"]
    text = "".join(f"{line}\n" for line in ("0", str(len(later)), *later)).encode()
    assert "leader-epoch-checkpoint" in _found(folder | {"leader-epoch-checkpoint": text})[0]


def _sealed(snapshot: bytes) -> bytes:
    from crc32c import crc32c

    return snapshot[:2] + crc32c(snapshot[6:]).to_bytes(4, "big") + snapshot[6:]


def test_snapshot_that_is_not_whole_counts_as_absent() -> None:
    folder = _folder(ProducersOfALog)
    name = max(name for name in folder if name.endswith(".snapshot"))
    assert snapshot_rows(folder[name])
    assert snapshot_rows(folder[name][:-1]) is None
    assert snapshot_rows(folder[name][:-1] + b"\x7f") is None


def test_recovery_point_behind_the_batches_is_a_false_claim() -> None:
    folder = _folder(TransactionsOfALog)
    start = segments_of(folder)[0].base
    end = segments_of(folder)[-1].next_offset
    assert list(false_claims(folder, start)) == []
    for claimed, claims in ((end, 0), (end + 1, 1)):
        name = "recovery-point-offset-checkpoint"
        assert len(list(false_claims(folder | {name: f"0\n1\n{claimed}\n".encode()}, start))) == claims


def test_empty_log_may_know_the_epoch_at_its_start_and_no_other() -> None:
    def epochs(*rows: str) -> dict[str, bytes]:
        text = "".join(f"{line}\n" for line in ("0", str(len(rows)), *rows)).encode()
        return {f"{23:020}.log": b"", "leader-epoch-checkpoint": text}

    assert _found(epochs("4 23")) == []
    assert _found(epochs("4 22"))
    assert _found(epochs("4 23", "5 24"))


def test_replay_follows_transactions() -> None:
    folder = _folder(TransactionsOfALog)
    replay = replayed(batch.data for segment in segments_of(folder) for batch in segment.batches)
    assert replay.aborted
    assert all(row.first_offset < row.marker_offset for row in replay.aborted)
