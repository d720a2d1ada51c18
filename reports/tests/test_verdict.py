"""The verdict's rules, without Spark: evidence, precedence, and the machine-readable form."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reports.collect import Findings, Violations
from reports.decide import decide
from reports.errors import SetupError
from reports.jobs.guarantee_job import guarantee_jobs
from reports.manifest import (
    CheckResult,
    Expectations,
    Manifest,
    ManifestError,
    manifest_from,
    read_manifest,
    write_manifest,
)
from reports.schema import TABLES, stored_files
from reports.spark import java_major, require_java
from reports.verdict import Anomaly, Outcome, Verdict, worst_exit_code, write_junit, write_verdict

MANIFEST = Manifest(scenario="01-x", seed=5, world="sim", repeat_command="crucible sim 01-x --seed 5")
VIOLATION = Anomaly("poll-skip", "t", 0, 7, "fetcher-0", 3, 1_500_000, "kill #1", "Read to 6, then from \x01 9.")


def findings(results: Mapping[str, Violations] | None = None, **changes: object) -> Findings:
    numbers = {job.evidence: 1_000 for job in guarantee_jobs()} | {"fetches": 500, "operations": 900}
    names: tuple[str, ...] = ("faults", "fault_hits", "percentiles", "distribution", "latency", "heatmap")
    names = (*names, "throughput", "load", "gaps", "first_ok", "broker", "transfers", "failovers")
    values: dict[str, object] = dict.fromkeys(names, ())
    nothing = {job.name: Violations(0, ()) for job in guarantee_jobs()}
    values |= {"facts": numbers, "found": nothing | dict(results or {}), "present": frozenset(t.name for t in TABLES)}
    return Findings(**{**values, **changes})  # type: ignore[arg-type]


def expecting(**expected: object) -> Manifest:
    return replace(MANIFEST, expectations=Expectations(**expected))  # type: ignore[arg-type]


def verdict_of(manifest: Manifest, one: Findings | None = None) -> Verdict:
    return decide(manifest, one or findings(), Path("run"))


def test_run_with_evidence_and_no_anomaly_passes() -> None:
    verdict = verdict_of(expecting(min_fetches=500, min_acked=1_000))
    assert verdict.outcome == Outcome.PASSED
    assert verdict.exit_code == 0
    assert verdict.reasons == ()


def test_fault_that_must_fire_twice_and_a_log_that_must_be_read_to_its_end() -> None:
    once, twice = ([{"name": "kill", "kind": "node_killed", "hits": hits}] for hits in (1, 2))
    manifest = expecting(faults=("kill", "kill"))
    assert verdict_of(manifest, findings(faults=twice)).outcome is Outcome.PASSED
    verdict = verdict_of(manifest, findings(faults=once))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reasons == ("The fault 'kill' fired 1 of 2 times.",)
    cut_short = {**findings().facts, "unended_partitions": 3}
    verdict = verdict_of(MANIFEST, findings(facts=cut_short))
    assert verdict.outcome is Outcome.INVALID
    assert "3 written partitions were not read to their end." in verdict.reasons


def test_run_that_must_show_rewinds_and_shows_none_is_invalid() -> None:
    once = findings(facts={**findings().facts, "rewinds": 1})
    assert verdict_of(expecting(min_rewinds=1), once).outcome is Outcome.PASSED
    verdict = verdict_of(expecting(min_rewinds=2), once)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reasons == ("Clients rewound 1 times, and 2 are needed.",)
    assert verdict_of(expecting(min_rewinds=1)).outcome is Outcome.INVALID


def test_outcome_of_hit_is_not_counted_as_hit() -> None:
    rows = [
        {"name": "old", "kind": kind, "hits": 3}
        for kind in ("requests_replayed", "requests_replayed_response", "requests_replayed_answered")
    ]
    verdict = verdict_of(expecting(faults=("old",) * 6), findings(faults=rows))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reasons == ("The fault 'old' fired 3 of 6 times.",)
    assert "under 1 fault with 3 hits" in verdict_of(expecting(faults=("old",) * 3), findings(faults=rows)).summary


def test_run_whose_load_generator_was_the_limit_shows_nothing() -> None:
    worker = {"worker": "worker-1", "seconds": 20, "limited_seconds": 2, "cpu_permille": 980, "worst_lag_us": 420_000}
    assert verdict_of(MANIFEST, findings(generator=[worker])).outcome is Outcome.PASSED
    verdict = verdict_of(MANIFEST, findings(generator=[{**worker, "limited_seconds": 5}]))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reasons == (
        "The load generator was the limit, not the broker: worker-1 had no processor time left and ran late in 5 of 20 "
        "seconds (by up to 420 ms). Use more workers or less load.",
    )
    fired = [{"name": "cut", "kind": "link_cut", "hits": 1}]
    under_faults = findings(generator=[{**worker, "limited_seconds": 5}], faults=fired)
    assert verdict_of(expecting(faults=("cut",)), under_faults).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (expecting(faults=("cut",)), "'cut' never fired"),
        (expecting(min_fetches=501), "500 successful fetches"),
        (expecting(min_acked=1_001), "1,000 acknowledged records"),
        (expecting(max_schedule_slip_ms=20), "30 ms behind"),
        (expecting(guarantees=("no_such_thing",)), "no-such-thing"),
        (replace(MANIFEST, mutant="m", mutant_calls=0), "never called"),
    ],
)
def test_run_without_evidence_is_invalid_with_reason(manifest: Manifest, reason: str) -> None:
    load = [
        {"second": 0, "offered": 1, "sent": 1, "completed": 1, "failed": 0, "max_slip_us": 30_000, "cpu_permille": 1}
    ]
    verdict = verdict_of(manifest, findings(load=load))
    assert verdict.exit_code == 3
    assert reason in " ".join(verdict.reasons)


def test_promised_guarantee_with_nothing_to_judge_makes_the_run_invalid() -> None:
    bare = findings(facts={"records_read": 10})
    assert verdict_of(MANIFEST, bare).outcome is Outcome.PASSED
    verdict = verdict_of(expecting(guarantees=("session-lost",)), bare)
    assert verdict.outcome is Outcome.INVALID
    assert "no incremental fetches" in verdict.reasons[0]


def test_live_run_needs_no_evidence_of_simulator_only_checks() -> None:
    manifest = replace(expecting(guarantees=("log-matching", "lost-metadata")), world="live")
    verdict = verdict_of(manifest)
    assert verdict.outcome is Outcome.PASSED
    assert {guarantee.name: guarantee.status for guarantee in verdict.guarantees}["log-matching"] == "not checked"
    nothing = findings(facts={"records_read": 10})
    assert verdict_of(manifest, nothing).outcome is Outcome.INVALID  # lost-metadata can be judged live, and was not


def test_broken_guarantee_outweighs_missing_evidence_and_a_crash_outweighs_both() -> None:
    broken = findings({"poll-skip": Violations(1, (VIOLATION,))})
    manifest = expecting(faults=("cut",))
    assert verdict_of(manifest, broken).exit_code == 1
    assert verdict_of(replace(manifest, crash="The broker died of signal 6."), broken).exit_code == 4


def test_anomaly_that_the_scenario_does_not_promise_against_is_shown_but_does_not_fail() -> None:
    verdict = verdict_of(expecting(guarantees=("lost-write",)), findings({"poll-skip": Violations(1, (VIOLATION,))}))
    assert verdict.outcome is Outcome.PASSED
    assert (
        next(guarantee.status for guarantee in verdict.guarantees if guarantee.name == "poll-skip")
        == "broken, not promised"
    )


LOSS = Anomaly("lost-write", "hot", 0, 7, "producer-0", 3, 1_500_000, "0.4 s before kill #1", "Offset 7 is gone.")


@pytest.mark.parametrize(
    ("losses", "fault", "words"),
    [
        (
            [{"topic": "hot", "is_gone": True, "records": 4_836}],
            "0.4 s before kill #1",
            "4,836 records of topic hot acknowledged before kill #1 do not exist any more.",
        ),
        (
            [{"topic": "hot", "is_gone": True, "records": 1}],
            "2.0 s after kill #1",
            "1 acknowledged record of topic hot does not exist any more.",
        ),
        (
            [{"topic": "b", "is_gone": True, "records": 2}, {"topic": "a", "is_gone": False, "records": 3}],
            "0.4 s before kill #1",
            "5 acknowledged records of topics a and b are lost, the first acknowledged at 1.500 s, 0.4 s before kill",
        ),
    ],
)
def test_first_sentence_names_loss(losses: list[dict[str, object]], fault: str, words: str) -> None:
    broken = {"lost-write": Violations(1, (replace(LOSS, fault=fault),)), "poll-skip": Violations(1, (VIOLATION,))}
    assert verdict_of(MANIFEST, findings(broken, losses=losses)).summary.startswith(words)


def test_first_sentence_names_first_violation_without_loss() -> None:
    summary = verdict_of(MANIFEST, findings({"poll-skip": Violations(1, (VIOLATION,))})).summary
    assert summary.startswith(
        "A fetcher's next read jumped over records that exist, first at 1.500 s, during kill #1: Read"
    )


def test_nodes_that_do_not_respond_after_the_heal_break_a_guarantee_that_was_not_promised() -> None:
    missed = CheckResult(
        guarantee="responses-after-heal", holds=False, evidence=1, detail="1 node did not describe the metadata"
    )
    verdict = verdict_of(replace(expecting(guarantees=("lost-write",)), world="live", checks=(missed,)))
    assert verdict.outcome == Outcome.FAILED
    assert verdict.exit_code == 1
    assert verdict.summary.startswith("1 node did not describe the metadata.")


def test_passed_run_lists_unjudged_guarantees() -> None:
    verdict = verdict_of(replace(expecting(guarantees=("lost-write", "log-matching", "isr-honest")), world="live"))
    assert verdict.outcome == Outcome.PASSED
    assert verdict.unjudged == ("isr-honest", "log-matching")
    assert verdict.summary.endswith(" 2 of 3 promised guarantees were not judged here: isr-honest and log-matching.")
    assert verdict_of(expecting(guarantees=("lost-write",))).unjudged == ()


def test_simulators_own_checks_count() -> None:
    broken = replace(
        MANIFEST, checks=(CheckResult(guarantee="metrics_exact", holds=False, evidence=9, detail="Gauge is 3, not 2."),)
    )
    assert verdict_of(broken).outcome is Outcome.FAILED
    held = replace(MANIFEST, checks=(CheckResult(guarantee="metrics-exact", holds=True, evidence=9),))
    assert verdict_of(replace(held, expectations=Expectations(guarantees=("metrics-exact",)))).outcome is Outcome.PASSED


def test_promised_guarantee_that_only_the_simulator_saw_broken_fails_the_run() -> None:
    job = next(job for job in guarantee_jobs() if job.about and not job.guarantee.always)
    missed = CheckResult(guarantee=job.name, holds=False, evidence=1, detail="Node 1 was wrong.")
    without_evidence = findings(facts={**findings().facts, job.evidence: 0})
    promising = expecting(guarantees=(job.name,))
    assert verdict_of(promising, without_evidence).outcome is Outcome.PASSED, "the run exercises none of its clauses"
    verdict = verdict_of(replace(promising, checks=(missed,)), without_evidence)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.summary.startswith("Node 1 was wrong.")


def test_guarantees_of_older_runs_use_present_names() -> None:
    missed = CheckResult(guarantee="answers-after-heal", holds=False, evidence=1, detail="Node 1 did not respond.")
    verdict = verdict_of(replace(expecting(guarantees=("answers-after-heal",)), checks=(missed,)))
    assert verdict.outcome is Outcome.FAILED
    assert [guarantee.name for guarantee in verdict.guarantees if guarantee.status == "broken"] == [
        "responses-after-heal"
    ]


def test_crash_outweighs_failure_outweighs_invalid_in_the_exit_code() -> None:
    verdicts = [replace(verdict_of(MANIFEST), outcome=each) for each in Outcome]
    assert worst_exit_code(verdicts) == 4
    assert worst_exit_code(verdicts[:3]) == 1
    assert worst_exit_code([verdicts[0], verdicts[2]]) == 3
    assert worst_exit_code(verdicts[:1]) == 0


def test_frame_guarantees_need_no_trace_and_inside_ones_their_check() -> None:
    names = ("session-lost", "one-leader-per-epoch", "incremental-response-exact")
    manifest = expecting(guarantees=names)

    def statuses(*present: str) -> list[str]:
        statuses_by_name = {
            guarantee.name: guarantee.status
            for guarantee in verdict_of(manifest, findings(present=frozenset(present))).guarantees
        }
        return [statuses_by_name[name] for name in names]

    assert statuses("frames", "frame_lines") == ["holds", "not checked", "holds"]
    assert statuses("trace") == ["holds", "holds", "not checked"]
    inside = replace(manifest, checks=(CheckResult(guarantee="incremental-response-exact", holds=True, evidence=3),))
    judged = {
        guarantee.name: guarantee for guarantee in verdict_of(inside, findings(present=frozenset({"trace"}))).guarantees
    }
    assert judged["incremental-response-exact"].judged_by == "simulator"


def test_junit_and_json_say_the_same_as_the_verdict(tmp_path: Path) -> None:
    verdict = verdict_of(
        MANIFEST, findings({"poll-skip": Violations(4, (VIOLATION,))}, present=frozenset({"operations", "runs"}))
    )
    write_junit(tmp_path / "junit.xml", verdict)
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert suite.get("tests") == str(len(suite.findall("testcase"))) == str(len(verdict.guarantees) + 1)
    assert suite.get("failures") == str(len(suite.findall("testcase/failure"))) == "0"
    assert suite.get("skipped") == str(len(suite.findall("testcase/skipped")))
    failing = verdict_of(MANIFEST, findings({"poll-skip": Violations(4, (VIOLATION,))}))
    write_junit(tmp_path / "junit.xml", failing)
    failure = ElementTree.parse(tmp_path / "junit.xml").getroot()[0].find("testcase/failure")
    assert failure is not None
    assert "t-0 @7" in (failure.text or "")
    write_verdict(tmp_path / "verdict.json", failing)
    raw = json.loads((tmp_path / "verdict.json").read_text())
    assert raw["outcome"] == "FAILED"
    assert raw["exit_code"] == 1
    assert raw["repeat_command"] == MANIFEST.repeat_command


def test_manifest_survives_writing_and_refuses_unknown_keys(tmp_path: Path) -> None:
    manifest = replace(
        MANIFEST,
        expectations=Expectations(faults=("a",), min_acked=3),
        checks=(CheckResult(guarantee="g", holds=True),),
        notes=("n",),
        config={"k": "v"},
    )
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    raw = json.loads((tmp_path / "manifest.json").read_text())
    raw["expectations"]["min_aked"] = 1
    with pytest.raises(ManifestError, match="min_aked"):
        manifest_from(raw)
    with pytest.raises(ManifestError, match="seed"):
        manifest_from({"scenario": "x", "world": "sim", "repeat_command": "y"})
    with pytest.raises(ManifestError, match="not the folder of a run"):
        read_manifest(tmp_path / "nowhere")


def test_missing_java_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SetupError, match="install") as refusal:
        require_java()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea"', 25),
        ("?", 0),
    ],
)
def test_java_versions_are_read(text: str, major: int) -> None:
    assert java_major(text) == major


def test_only_a_run_about_downloads_must_have_had_one() -> None:
    without = findings(facts={**findings().facts, "download_chunks": 0})
    manifest = expecting(guarantees=("snapshot-transfer-bounded",))
    about = verdict_of(replace(manifest, clauses=("S-11",)), without)
    assert about.outcome is Outcome.INVALID
    assert about.reasons == (
        "snapshot-transfer-bounded is promised but could not be judged: There were no chunks of snapshots received.",
    )
    other = verdict_of(replace(manifest, clauses=("T-7",)), without)
    assert other.outcome is Outcome.PASSED
    assert next(
        guarantee for guarantee in other.guarantees if guarantee.name == "snapshot-transfer-bounded"
    ).status == ("nothing to judge")


def test_live_node_that_ended_itself_breaks_a_guarantee_without_any_history() -> None:
    ended = CheckResult(
        guarantee="quorum-converges", holds=False, evidence=1, detail="node-1 could not start again: damaged"
    )
    manifest = replace(expecting(guarantees=("quorum-converges",), min_fetches=10), world="live", checks=(ended,))
    verdict = verdict_of(manifest, findings(facts={}, present=frozenset()))
    assert verdict.outcome == Outcome.FAILED
    assert verdict.exit_code == 1
    assert verdict.reasons[0] == "quorum-converges was broken once. node-1 could not start again: damaged"
    assert next(guarantee for guarantee in verdict.guarantees if guarantee.status == "broken").judged_by == "runner"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "history/operations-a.parquet is missing"),
        (lambda path: path.write_bytes(b""), "history/operations-a.parquet has 0 of 4 bytes"),
        (lambda path: path.write_bytes(b"PAR"), "history/operations-a.parquet has 3 of 4 bytes"),
        (lambda path: path.with_name("operations-c.parquet").touch(), "history/operations-c.parquet was added"),
    ],
)
def test_history_that_lost_a_file_decides_nothing(
    tmp_path: Path, change: Callable[[Path], object], reason: str
) -> None:
    (tmp_path / "history").mkdir()
    for writer in "ab":
        (tmp_path / "history" / f"operations-{writer}.parquet").write_bytes(b"PAR1")
    manifest = replace(MANIFEST, history_files=stored_files(tmp_path))
    broken = findings({"poll-skip": Violations(1, (VIOLATION,))})
    assert decide(manifest, findings(), tmp_path).outcome is Outcome.PASSED
    assert decide(manifest, broken, tmp_path).outcome is Outcome.FAILED
    change(tmp_path / "history" / "operations-a.parquet")
    for seen in (findings(), broken):
        verdict = decide(manifest, seen, tmp_path)
        assert verdict.outcome is Outcome.INVALID
        assert verdict.reasons[0].startswith(f"The history is not whole: {reason}.")


def test_deleted_history_is_called_so_and_not_thin_traffic() -> None:
    verdict = verdict_of(expecting(min_fetches=10), findings(facts={}, present=frozenset({"faults"})))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reasons == (
        "The run left no history of client operations: there is no file history/operations*.parquet.",
    )
