"""The first page: what was attacked in words, the one figure of each fault, and what is shown apart from it."""

from dataclasses import replace

import pytest

from reports.collect import Violations
from reports.job_rows import Row
from reports.page.faults import Figure, Impact, Window, attacks, fault_sentence
from reports.page.latency import Contrast, contrasts, latency_rows, thin_operations
from reports.page.render import strained
from reports.tests.test_verdict import MANIFEST, VIOLATION, findings, verdict_of

QUIET = Window(2_000, 5_000, 5_000, 80.0)
KILLED = "leader partition_leader"


def fault(name: str, kind: str, target: str = "node-1", detail: str = "", **changed: object) -> Row:
    row = {"name": name, "kind": kind, "hits": 1, "from_us": 34_000_000, "until_us": 36_000_000, "target": target}
    return {**row, "detail": detail, "api_key": -1, **changed}


def cost(name: str, outage_us: int, during_p99_us: int = 900_000) -> Impact:
    during = Window(2_000, during_p99_us, 5_000, 10.0)
    return Impact(name, "produce", QUIET, during, QUIET, 3, outage_us, 100, 1_000_000)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            fault("a", "node_killed", detail="the leader of hot-0: pid 7 ended by SIGKILL"),
            "The leader of hot-0 (node 1) was killed",
        ),
        (
            fault(
                "a",
                "node_killed",
                detail=f"{KILLED} metadata_appended offset=9 kind=batch number=2 of=4 "
                "change=create topics pid 7 ended by SIGKILL",
            ),
            "The controller (node 1) was killed inside a metadata transaction (create topics, batch 2 of 4)",
        ),
        (
            fault("a", "node_killed", detail=f"{KILLED} transaction_decided transactional_id=t-2 outcome=commit"),
            "A coordinator (node 1) was killed with a transaction decided (commit) and no marker sent",
        ),
        (
            fault("a", "node_killed", detail="follower log_flushed partition=hot-0"),
            "Node 1 was killed at “log flushed”",
        ),
        (fault("a", "node_killed", api_key=26), "Node 1 was killed at a request to end a transaction"),
        (fault("a", "host_lost"), "Node 1 vanished with its host for 2.0 s"),
        (
            fault("a", "node_paused", hits=3),
            "A node was stopped 3 times",
        ),
        (fault("a", "response_dropped", api_key=1, hits=6), "6 responses to fetches were lost"),
        (fault("a", "response_dropped", api_key=1), "A response to a fetch was lost"),
        (fault("a", "response_lost_by_proxy", api_key=1), "A response to a fetch was lost in Toxiproxy"),
        (fault("a", "request_delayed", api_key=26, hits=2), "2 requests to end a transaction were late"),
        (fault("a", "link_cut", "link client-node-1"), "The link between clients and node 1 was cut for 2.0 s"),
        (
            fault("a", "link_reset", "link client-node-1", hits=2),
            "The link between clients and node 1 was reset 2 times",
        ),
        (
            fault("a", "link_cut", "link client-node-2", "the leader of hot-0: requests vanished; a probe was refused"),
            "The link between clients and node 2 (the leader of hot-0) was cut for 2.0 s",
        ),
        (fault("a", "link_cut", "links 2>all"), "The link between node 2 and all nodes was cut for 2.0 s"),
        (
            fault("a", "link_slowed", "link node-0-node-1, node-0-node-2"),
            "Each of 2 links was narrow for 2.0 s",
        ),
        (
            fault("a", "node_isolated", "node-0", "follower partition_follower"),
            "Node 0 was cut off from the other nodes for 2.0 s",
        ),
        (fault("a", "brand_new_kind"), "Node 1 was hit (brand new kind)"),
    ],
)
def test_description_of_fault(row: Row, words: str) -> None:
    assert fault_sentence(row) == words


def test_each_fault_has_the_figure_that_it_is_about() -> None:
    rows = [
        fault("lost", "response_dropped", api_key=1, from_us=1_000_000, until_us=2_000_000),
        fault("slow", "link_delayed", "link client-node-1", from_us=3_000_000),
        fault("download", "node_killed", "node-2", "follower download_chunk position=2048", from_us=4_000_000),
        fault("hot", "node_killed", detail="the leader of hot-0: pid 7 ended by SIGKILL", from_us=5_000_000),
        fault("controller", "node_killed", detail="leader metadata_appended number=1 of=2 change=x", from_us=6_000_000),
        fault("coordinator", "node_killed", detail="follower transaction_decided outcome=commit", from_us=7_000_000),
        fault("old_response", "requests_replayed_response", from_us=8_000_000),
    ]
    found = findings(
        faults=rows,
        recoveries=[
            {"lost_us": 1_500_000, "recovered_us": 86_000},
            {"lost_us": 6_900_000, "recovered_us": 120_000},
            {"lost_us": 7_100_000, "recovered_us": 9_000_000},  # more than five seconds later: lost to another fault
        ],
        transfers=[
            {
                "node": 2,
                "end_offset": 9,
                "epoch": 1,
                "size_bytes": 12_392,
                "received_bytes": 13_000,
                "starts": 2,
                "largest_chunk_bytes": 1_024,
                "resumes": 1,
                "resumed_at": 3_072,
                "discarded": 0,
                "from_us": 4_000_000,
                "until_us": 6_000_000,
                "finished": True,
            },
        ],
        failovers=[
            {
                "node": 1,
                "epoch": 1,
                "next_node": 2,
                "next_epoch": 2,
                "lost_us": 6_000_000,
                "active_us": 6_186_000,
                "cause": "controller",
                "accepted_us": None,
            },
        ],
        transactions_around_faults=[{"fault": "coordinator", "longest_us": 2_801_663}, {"fault": "", "longest_us": 9}],
    )
    costs = [cost(row["name"], 2_110_000) for row in rows]
    listed = {attack.fault: attack.figure for attack in attacks(found, verdict_of(MANIFEST), costs)}
    assert listed == {
        "lost": Figure("120 ms", "at worst from a lost response to the next good one"),
        "slow": Figure("900 ms", "p99 of produce, 5.0 ms before"),
        "download": Figure("608 B", "came twice, as it went on at 3.1 kB of 12.4 kB"),
        "hot": Figure("2.1 s", "until the next acknowledged record"),
        "controller": Figure("186 ms", "until the next controller"),
        "coordinator": Figure("2.8 s", "until the last open transaction was decided"),
    }


def test_nothing_lost_is_stated_only_if_judged() -> None:
    killed = findings(faults=[fault("kill", "node_killed"), fault("drop", "response_dropped", api_key=1)])
    whole = attacks(killed, verdict_of(MANIFEST), [])
    assert [(attack.fault, attack.nothing_lost) for attack in whole] == [("drop", False), ("kill", True)]
    facts = {**killed.facts, **dict.fromkeys(("records_acked", "acked_and_read", "ended_acked"), 0)}
    unseen = attacks(
        replace(killed, facts=dict.fromkeys(facts, 0)), verdict_of(MANIFEST, replace(killed, facts={})), []
    )
    assert not any(attack.nothing_lost for attack in unseen)
    lost = {"lost-write": Violations(2, (replace(VIOLATION, guarantee="lost-write", fault="2.0 s after kill"),) * 2)}
    broken = attacks(killed, verdict_of(MANIFEST, findings(lost)), [])
    assert [(attack.fault, attack.nothing_lost, attack.anomalies) for attack in broken] == [
        ("drop", False, 0),
        ("kill", False, 2),
    ]


def test_times_outside_faults_stand_beside_those_under_them() -> None:
    def row(operation: str, window: str, count: int, measure: str = "response", fault: str = "") -> Row:
        times = {"p50_us": 4_000, "p99_us": 9_000, "max_us": 12_000}
        return {"operation": operation, "measure": measure, "fault": fault, "window": window, "count": count, **times}

    rows = [row("fetch", "calm", 5_000), row("fetch", "faulty", 30), row("fetch", "", 9_000), row("produce", "calm", 1)]
    rows += [row("fetch", "calm", 7, "service"), row("fetch", "during", 7, fault="kill")]
    rows += [row("heartbeat", "faulty", 40)]
    assert contrasts(rows) == [
        Contrast("fetch", (5_000, 4_000, 9_000, 12_000), (30, 4_000, None, 12_000)),
        Contrast("heartbeat", (0, None, None, None), (40, 4_000, None, 12_000)),
    ]


def test_unrecovered_fault_has_no_recovery_time() -> None:
    row = fault("dead", "node_killed", detail="the leader of hot-0: pid 7 ended by SIGKILL")
    never = replace(cost("dead", 31_000_000), never_ok=True)
    (attack,) = attacks(findings(faults=[row]), verdict_of(MANIFEST), [never])
    assert attack.figure == Figure("never", "again was a record acknowledged")


def test_loss_is_attributed_to_named_fault() -> None:
    row = fault("kill", "node_killed")
    verdict = verdict_of(MANIFEST, findings({"poll-skip": Violations(1, (VIOLATION,))}))
    (attack,) = attacks(findings(faults=[row]), verdict, [])
    assert attack.anomalies == 1


def test_busy_machine_is_shown_beside_the_latencies() -> None:
    assert "13.67 on 2 cores" in strained({"load_average": "13.67 8.10 4.00", "cores": "2"})
    assert strained({"load_average": "1.90 8.10 4.00", "cores": "2"}) == strained({}) == ""


def test_latency_table_omits_rows_without_median() -> None:
    names = ("p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "p999_us", "p9999_us", "min_us", "max_us")
    rows = [
        {**dict.fromkeys(names, 5), "operation": name, "measure": "service", "fault": "", "window": "", "count": count}
        for name, count in (("fetch", 20), ("connect", 19))
    ]
    assert [row.operation for row in latency_rows(rows)] == ["fetch"]
    assert thin_operations(rows) == ["connect"]
