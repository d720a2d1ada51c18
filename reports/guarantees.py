"""The guarantees: names and violations. Only this module declares the names.

A scenario promises guarantees by name. A check in ``chaos/checks`` and a Spark job in ``reports/jobs`` judge them
independently of each other. Both refer to the guarantee by its name only. This module needs no Spark, so every room but
the broker and the scenarios may read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class SeenFrom(Enum):
    """The data that is required to judge a guarantee."""

    CLIENTS = "clients"  # the responses to clients, which a run with any broker has
    TRACE = "trace"  # the trace of each node, which only our broker writes
    INSIDE = "inside"  # the state of each node, after each event
    RUNNER = "runner"  # the processes of the nodes, which the live runner watches for any target


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A guarantee of the broker whose violation a run can show."""

    name: str
    violation: str
    """One sentence that describes a violation."""
    seen_from: SeenFrom = SeenFrom.CLIENTS
    keeps_writes: bool = False
    """No broker promises it if a node loses power before it flushed acknowledged writes."""
    of_sessions: bool = False
    """Requires fetchers with sessions."""
    always: bool = False
    """Must hold in every run, whatever its scenario lists."""
    on_the_wire: bool = False
    """The frames at the proxy in front of an external broker also show it, in part."""
    in_part: bool = False
    """A Spark job also judges it, as far as the responses to clients show it."""


_CLIENTS = (
    Guarantee("inconsistent-offsets", "Two different values were seen at one offset.", keeps_writes=True),
    Guarantee("duplicate", "A value is at two offsets under one producer ID."),
    Guarantee(
        "lost-write",
        "An acknowledged record was overtaken by reads and never read, or is beyond the end of its log.",
        keeps_writes=True,
    ),
    Guarantee(
        "unseen",
        "An acknowledged record was not read by the end, though its partition was read to the end.",
        keeps_writes=True,
    ),
    Guarantee("corrupt-value", "A value was read that no writer of this run made.", always=True),
    Guarantee("poll-skip", "A fetcher's next read jumped over records that exist."),
    Guarantee("nonmonotonic-poll", "A fetcher's next read went back."),
    Guarantee("int-poll-skip", "One read omitted records between two that it holds."),
    Guarantee("int-nonmonotonic-poll", "One read holds records out of order."),
    Guarantee("nonmonotonic-send", "A producer's later send was given an earlier offset.", keeps_writes=True),
    Guarantee("unrequested-partition", "A response named a partition that the fetcher had not requested."),
    Guarantee("fetch-gap", "A fetcher is not at the high watermark once all is quiet."),
    Guarantee("torn-metadata", "A part of a transaction was seen, or two nodes held different metadata at one offset."),
    Guarantee("lost-metadata", "An acknowledged change of metadata is gone, came twice, or no request made it."),
    Guarantee(
        "nonmonotonic-metadata-epoch",
        "A client or a node took metadata older than what it had, or an epoch was committed twice.",
    ),
    Guarantee("commit-regression", "A committed offset, its metadata epoch or its generation went back."),
    Guarantee("no-fetch-before-epoch", "A consumer fetched before its metadata was as new as the epoch of its offset."),
    Guarantee("rewinds", "A position was called out of range, though nothing was truncated or deleted there."),
    Guarantee("redelivery", "A partition's next owner read records again that the group had committed."),
    Guarantee("group-skip", "A group omitted records of a partition between two that it read."),
    Guarantee("mirror-complete", "A record of the source is not in the cluster that its mirror copied to."),
    Guarantee("aborted-read", "A reader with read_committed saw a value of a transaction that was not committed."),
    Guarantee("precommitted-read", "A reader with read_committed saw a value before its commit was requested."),
    Guarantee(
        "dependency-cycle",
        "The order of a log, reads and the order of requests in time form a circle (G0 or G1c).",
        keeps_writes=True,
    ),
    Guarantee("torn-transaction", "A part of a transaction took effect, and a part did not.", keeps_writes=True),
    Guarantee(
        "lost-transaction",
        "Nothing of a committed transaction is there, or the coordinator forgot a transactional ID that was in use.",
        keeps_writes=True,
    ),
    Guarantee("hanging-transaction", "A transaction held back the last stable offset after it should have ended."),
    Guarantee(
        "hanging-found",
        "An admin's tools missed a hanging transaction, aborted another one, or left it in the partition.",
    ),
    Guarantee("lso-regression", "A last stable offset went back within one leader epoch."),
    Guarantee(
        "materialized-view",
        "A reader of a whole compacted topic holds another newest record of a key than what was committed leaves.",
        keeps_writes=True,
    ),
    Guarantee("exactly-once", "An input took effect twice or never in a transactional output.", keeps_writes=True),
)


def _traced(name: str, violation: str, *, of_sessions: bool = False) -> Guarantee:
    return Guarantee(name, violation, SeenFrom.TRACE, of_sessions=of_sessions, on_the_wire=of_sessions)


_TRACE = (
    _traced("session-epoch-order", "A node accepted a wrong session epoch or refused the right one.", of_sessions=True),
    _traced("session-lost", "A node forgot a fetch session that it had neither closed nor evicted.", of_sessions=True),
    _traced("one-leader-per-epoch", "Two nodes led the quorum in one epoch."),
    _traced("one-partition-leader-per-epoch", "Two nodes led a partition in one leader epoch."),
    _traced("one-abort-per-begin", "A metadata transaction was closed twice, or not before the next one."),
    _traced("snapshot-transfer-bounded", "A download fetched again what it held already."),
)


def _inside(name: str, violation: str, *, of_sessions: bool = False, in_part: bool = False) -> Guarantee:
    return Guarantee(name, violation, SeenFrom.INSIDE, of_sessions=of_sessions, in_part=in_part)


_INSIDE = (
    _inside(
        "eviction-rules",
        "A fetch session was evicted or declined without a valid reason, or there were more sessions than slots.",
        of_sessions=True,
    ),
    _inside(
        "session-lines-exact",
        "A line of the trace had another session, epoch or maker than the node.",
        of_sessions=True,
    ),
    _inside(
        "first-revision-responses-exact",
        "A response of the first revision had wrong flags, a wrong session ID or no text.",
        of_sessions=True,
    ),
    _inside("metrics-exact", "A metric of the fetch sessions said something that was not so.", of_sessions=True),
    _inside(
        "forgotten-producer-refused",
        "A producer that a partition cannot know was believed, or one it must know was not.",
    ),
    _inside("drafts-unnoticed", "A node announced drafts to other people's clients, or did not announce one."),
    _inside("draft-layout-exact", "A frame of a draft version had another layout than its page says."),
    _inside(
        "log-consistent",
        "A log's high watermark went back or lay outside it, or its segments or files were not what they must be.",
    ),
    _inside("log-matching", "Two metadata logs held one batch, and different batches before it."),
    _inside("leader-completeness", "A later leader of the quorum lacked something that was committed."),
    _inside("monotonic-high-watermark", "The quorum's high watermark went back."),
    _inside("monotonic-epoch", "A node's epoch in the quorum went back."),
    _inside("majority-high-watermark", "A leader called something committed that no majority of voters held durably."),
    _inside("stable-leadership", "The quorum's leader was deposed although no fault had touched it."),
    _inside("snapshot-at-log-start", "A metadata log lacked the snapshot that should reach its start."),
    _inside("leader-never-loads-snapshot", "A leader of the quorum took its state from a snapshot."),
    _inside(
        "snapshot-responses-exact", "A request for bytes of a snapshot got others, or an error that does not fit it."
    ),
    _inside("snapshot-metrics-exact", "A metric of the snapshots said something that was not so."),
    _inside("snapshot-equals-replay", "Two nodes published different metadata at one offset."),
    _inside("markers-gated", "A transaction marker was committed below the metadata.version that allows it."),
    _inside("bootstrapped", "A node ended without knowing a metadata.version."),
    _inside("quorum-converges", "After the heal the nodes did not come to agree, or one of them ended itself."),
    Guarantee(
        "responses-after-heal",
        "A response came too early or too late, or after the heal a node did not come back or did not respond, or a "
        "partition could not be read to its end.",
        SeenFrom.INSIDE,
        always=True,
    ),
    _inside("no-false-fencing", "A broker was fenced although no fault had touched it for a whole session."),
    _inside("forged-refused", "A node granted a request in another's name, though it could see that it was forged."),
    _inside(
        "no-starvation",
        "A partition with data was omitted from as many responses as its session has partitions, or a response only "
        "had batches without records although records follow.",
    ),
    Guarantee(
        "incremental-response-exact",
        "An incremental response lacked a line that was due, or had one that was not.",
        SeenFrom.INSIDE,
        on_the_wire=True,
    ),
    _inside("stale-leader-epoch-fenced", "A client that named another leader epoch than the leader's was served."),
    _inside(
        "no-uncommitted-read", "A client was sent a record above the high watermark of the replica that served it."
    ),
    _inside("read-replica-eligible", "A consumer was sent to a replica out of sync, in another rack, or with less."),
    _inside("no-acked-lost", "A record was acknowledged to acks=all before enough replicas held it."),
    _inside("replicas-equal", "Two replicas held different batches below the high watermark."),
    _inside("high-watermark-monotonic", "A replica's high watermark went back, or lay outside its log."),
    _inside("isr-honest", "An in-sync replica lacked something that was committed."),
    _inside(
        "min-isr-kept",
        "The cluster lost its least number of in-sync replicas, a broker got its own, or a change left eligible ones.",
    ),
    _inside("stable-isr", "A replica left the in-sync replicas although no fault had touched it."),
    _inside("producers-replayed", "A log knew another last batch of a producer than the one that it holds."),
    _inside("producers-kept-at-stop", "A node stopped in good order without a snapshot of the producers of a log."),
    _inside("listed-when-stored", "A segment was listed without its objects, or with others than the log held."),
    _inside("newer-upload-counts", "A segment was listed that an earlier leader epoch than the newest uploaded."),
    _inside("closed-segments-stored", "After the heal a closed segment that may be copied was not in the tier."),
    _inside("kept-until-stored", "A replica deleted records locally that are not whole in the tier."),
    _inside(
        "uploaded-producers-replayed",
        "A snapshot of producers was uploaded that differs from a full replay of the log.",
    ),
    _inside("tombstones-marked", "A log lacked a tombstone at or above its marker, or a follower's marker overtook."),
    _inside("deleted-stays-deleted", "A replica held a deleted record, and neither its tombstone nor a newer one."),
    _inside(
        "one-bootstrap-per-marker",
        "A fetcher below the tombstone horizon did not begin again, did so twice, or without need.",
    ),
    _inside("damage-kept", "A node deleted or cut records that were damaged, but no torn end of a log."),
    _inside("replicas-converge", "After the heal a partition had no leader, or its replicas differed."),
    _inside("misplaced-markers-refused", "A node published metadata from behind a marker that was out of place."),
    _inside("one-content-per-epoch", "Two nodes sent clients different contents of one metadata epoch."),
    _inside(
        "updates-sent-at-once", "A controller sent a broker an update only after another had responded to its own."
    ),
    _inside("no-committed-lost", "A coordinator lost an offset whose commit it had acknowledged."),
    _inside("one-group-leader", "A generation of a group had two leaders or two assignments.", in_part=True),
    _inside("all-assigned", "After the heal a partition of a subscribed topic had no owner, or two."),
    _inside("commits-accepted", "A commit was refused that should have passed.", in_part=True),
    _inside("commits-fenced", "A commit was acknowledged to a member of another generation."),
    _inside(
        "transactional-ids-kept",
        "A coordinator forgot a transactional ID too early or too late, or took a timeout that is too long.",
    ),
    _inside("transactions-consistent", "What a coordinator holds of its transactions contradicts itself."),
    _inside("groups-consistent", "What a coordinator holds of its groups contradicts itself."),
    _inside("epoch-gated-by-transaction", "A metadata epoch was written inside an open metadata transaction."),
    _inside("switch-respected", "A node used the metadata epoch while it was not finalized, or took one back."),
)

_RUNNER = (
    Guarantee(
        "target-stays-up",
        "A node of the target ended though no fault had hit it, or did not come back after one.",
        SeenFrom.RUNNER,
    ),
)

GUARANTEES: Mapping[str, Guarantee] = {client.name: client for client in (*_CLIENTS, *_TRACE, *_INSIDE, *_RUNNER)}
"""The guarantees by name, in the order in which they are shown."""


def names_seen_from(*places: SeenFrom) -> tuple[str, ...]:
    """Return the names of the guarantees that can be judged from one of these places."""
    return tuple(guarantee.name for guarantee in GUARANTEES.values() if guarantee.seen_from in places)


def names_on_the_wire() -> tuple[str, ...]:
    """Return the names of the guarantees that frames show, in addition to those that clients show."""
    return tuple(guarantee.name for guarantee in GUARANTEES.values() if guarantee.on_the_wire)


def unknown_among(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are not those of guarantees."""
    return tuple(name for name in names if name not in GUARANTEES)
