"""Anomalies of replication, and what looks like one and is none."""

from collections.abc import Callable

from reports.tests.history import History
from reports.tests.replicas import Replicas


def plant_two_leaders_in_one_epoch(history: History) -> None:
    Replicas(history.tables).leads(2, 0, 1, "1,2", 3_350_000)


def legal_leader_that_returns_in_a_new_epoch(history: History) -> None:
    Replicas(history.tables).leads(0, 0, 2, "1,2,0", 5_000_000)


def with_acks(plant: Callable[[History], None], acks: int) -> Callable[[History], None]:
    """Do what ``plant`` does, in a history in which all sends had these acks."""

    def planted(history: History) -> None:
        for row in history.rows("runs", kind="send"):
            row["acks"] = acks
        plant(history)

    return planted


def planted_replicas(
    lost: Callable[[History], None],
    unseen: Callable[[History], None],
    duplicate: Callable[[History], None],
    sent_back: Callable[[History], None],
) -> dict[str, tuple[Callable[[History], None], set[str]]]:
    return {
        "one-partition-leader-per-epoch": (plant_two_leaders_in_one_epoch, {"one-partition-leader-per-epoch"}),
        "leader again": (legal_leader_that_returns_in_a_new_epoch, set()),
        "lost with acks=1": (with_acks(lost, 1), set()),
        "lost with acks=all": (with_acks(lost, -1), {"lost-write", "unseen"}),
        "unseen with acks=1": (with_acks(unseen, 1), set()),
        "unseen with acks=all": (with_acks(unseen, -1), {"unseen"}),
        "sent back with acks=1": (with_acks(sent_back, 1), set()),
        "sent back with acks=all": (with_acks(sent_back, -1), {"nonmonotonic-send"}),
        "duplicate after a failover": (with_acks(duplicate, -1), {"duplicate"}),
    }
