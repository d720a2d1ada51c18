"""One violation each of the guarantees of groups and the metadata epoch, and legal near misses."""

from collections.abc import Callable

from reports.tests.groups import MIRROR, NEW, OLD, TOPIC, Groups
from reports.tests.history import History, Row, int_of


def _commits(history: History, partition: int, kind: str = "commit") -> list[Row]:
    return [row for row in history.rows("commits", kind=kind, partition=partition) if row["error"] is None]


def _operation(history: History, row: Row) -> Row:
    return history.rows("operations", process=row["process"], index=row["index"])[0]


def _more(history: History) -> Groups:
    """Add what one more member does. Its operations get numbers of their own."""
    numbers = dict.fromkeys((NEW, OLD, MIRROR), 10_000)
    return Groups(history.tables, index=numbers, epoch=6, seq=3_000_000, generation=3)


# -- metadata epochs --------------------------------------------------------------------------------------------


def plant_older_metadata_taken(history: History) -> None:
    history.rows("metadata_epochs", accepted=False)[0]["accepted"] = True


def plant_metadata_without_an_epoch_taken(history: History) -> None:
    history.rows("metadata_epochs", accepted=False)[0].update(accepted=True, metadata_epoch=-1)


def legal_older_metadata_after_coming_back(history: History) -> None:
    plant_older_metadata_taken(history)
    more = _more(history)
    more.member(NEW, "left", at_us=3_355_000)
    more.metadata(1, 6, 3_500_000)


def _takes_older_metadata_after(history: History, left_us: int) -> None:
    """The client requests metadata at 3,499,600 us, gets it with epoch 7 at 3,500,500 us, and takes epoch 6 later."""
    more = _more(history)
    more.member(NEW, "left", at_us=left_us)
    more.metadata(1, 7, 3_500_500)
    more.metadata(2, 6, 3_600_000)
    history.rows("metadata_epochs", metadata_epoch=6)[-1]["accepted"] = True


def legal_metadata_requested_before_leaving(history: History) -> None:
    _takes_older_metadata_after(history, 3_499_600)


def plant_older_metadata_of_one_life(history: History) -> None:
    _takes_older_metadata_after(history, 3_499_500)


def plant_node_goes_back(history: History) -> None:
    _more(history).note(1, "update_metadata_applied", 4_000_000, epoch=5, controller_epoch=3, controller_id=2)


def plant_epoch_twice_in_the_log(history: History) -> None:
    _more(history).note(2, "metadata_epoch", 4_000_000, epoch=6, controller_epoch=3, offset=200)


def legal_epoch_noted_by_two(history: History) -> None:
    _more(history).note(2, "metadata_epoch", 4_000_000, epoch=6, controller_epoch=2, offset=106)


# -- committed offsets ------------------------------------------------------------------------------------------


def plant_smaller_epoch_committed(history: History) -> None:
    """It is not fetched after that."""
    _commits(history, 0)[-1]["metadata_epoch"] = 5


def legal_smaller_epoch_after_an_old_version(history: History) -> None:
    *_, before, last = _commits(history, 0)
    before.update(draft=False, metadata_epoch=-1)
    last["metadata_epoch"] = 5


def legal_smaller_epoch_in_an_overlapping_request(history: History) -> None:
    last = _commits(history, 0)[-1]
    last["metadata_epoch"] = 5
    _operation(history, last)["invoke_us"] = min(
        int_of(_operation(history, row), "invoke_us") for row in _commits(history, 0) if row["metadata_epoch"] == 6
    )


def plant_older_generation_commits(history: History) -> None:
    _commits(history, 1)[-1]["generation"] = 2


def _fetched_last(history: History, partition: int) -> Row:
    return _commits(history, partition, "fetched")[-1]


def plant_older_value_fetched(history: History) -> None:
    """The owner fetches what was committed before, and continues there."""
    fetched = _fetched_last(history, 0)
    fetched["offset"] = _commits(history, 0)[2]["offset"]


def plant_nothing_fetched(history: History) -> None:
    _fetched_last(history, 1)["offset"] = -1


def _read_at_the_end(history: History, offset: int) -> None:
    """The suite reads a committed offset once more, when no member fetches any more."""
    more, at_us = _more(history), max(int_of(row, "at_us") for row in history.rows("commits")) + 2_000_000
    index = more.operation("offsets-reader", "final_offsets", at_us)
    more.offsets("offsets-reader", index, "fetched", 1, (offset, -1), at_us)


def plant_nothing_committed_at_the_end(history: History) -> None:
    _read_at_the_end(history, -1)


def legal_last_offset_at_the_end(history: History) -> None:
    _read_at_the_end(history, int_of(_commits(history, 1)[-1], "offset"))


def plant_epoch_not_loaded(history: History) -> None:
    _fetched_last(history, 0)["metadata_epoch"] = -1


def plant_value_of_long_ago_fetched(history: History) -> None:
    """Others were committed after the one of unknown end."""
    lost = history.rows("commits", partition=0, error="disconnected")[0]
    lost["offset"] = 7
    _fetched_last(history, 0).update(offset=7, metadata_epoch=lost["metadata_epoch"])


def legal_value_of_unknown_end_fetched(history: History) -> None:
    """No commit got a response after it."""
    fetched = _fetched_last(history, 0)
    lost = history.rows("commits", partition=0, error="disconnected")[0]
    lost["offset"] = 7
    for row in _commits(history, 0):
        if int_of(lost, "at_us") < int_of(row, "at_us") < int_of(fetched, "at_us"):
            history.drop("commits", row)
    fetched.update(offset=7, metadata_epoch=lost["metadata_epoch"])


# -- refused commits, and members of one generation --------------------------------------------------------------

OLDER = "INVALID_METADATA_EPOCH"


def plant_commit_refused_without_a_greater_epoch(history: History) -> None:
    _commits(history, 0)[-2]["error"] = OLDER


def legal_commit_refused_after_a_greater_epoch(history: History) -> None:
    _commits(history, 0)[-2].update(metadata_epoch=5, error=OLDER)


def plant_commit_refused_after_an_old_version(history: History) -> None:
    """The older version left no epoch, so nothing was greater any more."""
    *_, before, last = _commits(history, 0)
    before.update(draft=False, metadata_epoch=-1)
    last.update(metadata_epoch=5, error=OLDER)


def legal_commit_refused_beside_an_old_version(history: History) -> None:
    """Which of the two was first is unknown."""
    plant_commit_refused_after_an_old_version(history)
    before = _commits(history, 0)[-1]
    last = history.rows("commits", kind="commit", partition=0, error=OLDER)[0]
    _operation(history, last)["invoke_us"] = int_of(_operation(history, before), "invoke_us")


def plant_commit_refused_for_no_known_reason(history: History) -> None:
    _commits(history, 0)[-2]["error"] = "UNKNOWN_SERVER_ERROR"


def plant_partition_given_to_two(history: History) -> None:
    (given,) = history.rows("memberships", event="assigned", generation=2, partition=1)
    history.tables["memberships"].append({**given, "process": OLD, "at_us": int_of(given, "at_us") + 1})


def legal_partition_given_by_the_group_after_a_deleted_one(history: History) -> None:
    _deleted_before_it_was_given_to_two(history)


def plant_partition_given_to_two_before_the_deletion(history: History) -> None:
    _deleted_before_it_was_given_to_two(history, late_us=2)


def plant_partition_given_to_two_beside_a_deleted_group(history: History) -> None:
    _deleted_before_it_was_given_to_two(history, group="another")


def _deleted_before_it_was_given_to_two(history: History, *, late_us: int = 0, group: str = "") -> None:
    plant_partition_given_to_two(history)
    membership = history.tables["memberships"][-1]
    name = group or membership["group"]
    _more(history).note(1, "group_state", int_of(membership, "at_us") + late_us, group=name, state="Dead", generation=2)


def legal_partition_given_again_in_a_generation(history: History) -> None:
    (given,) = history.rows("memberships", event="assigned", generation=2, partition=1)
    history.tables["memberships"].append({**given, "at_us": int_of(given, "at_us") + 1})


# -- positions --------------------------------------------------------------------------------------------------


def plant_rewind(history: History) -> None:
    """A stale leader calls a position out of range; the member starts again, and the mechanism's own judge says so."""
    _more(history).reset(NEW, 0, 40, 0, "OFFSET_OUT_OF_RANGE", 5_850_000)


def legal_reset_after_a_truncation(history: History) -> None:
    plant_rewind(history)
    _more(history).note(2, "truncated", 5_000_000, partition=f"{TOPIC}-0", offset=39)


def plant_reset_below_a_truncation(history: History) -> None:
    plant_rewind(history)
    _more(history).note(2, "truncated", 5_000_000, partition=f"{TOPIC}-0", offset=40)


def plant_reset_before_a_truncation(history: History) -> None:
    """The stale leader, come back."""
    plant_rewind(history)
    (reset,) = history.rows("resets", reason="OFFSET_OUT_OF_RANGE")
    _more(history).note(2, "truncated", int_of(reset, "at_us") + 1_000, partition=f"{TOPIC}-0", offset=39)


def plant_reset_long_after_a_truncation(history: History) -> None:
    """The log has grown again since then."""
    plant_rewind(history)
    _more(history).note(2, "truncated", 300_000, partition=f"{TOPIC}-0", offset=39)


def legal_reset_below_the_log_start(history: History) -> None:
    plant_rewind(history)
    history.rows("positions", process=NEW, partition=0)[-1]["log_start_offset"] = 41


def legal_reset_above_the_end(history: History) -> None:
    plant_rewind(history)
    history.rows("resets", reason="OFFSET_OUT_OF_RANGE")[0]["from_offset"] = 10**6


def _first_read_of_generation(history: History, generation: int, partition: int) -> tuple[Row, Row]:
    given = history.rows("memberships", event="assigned", generation=generation, partition=partition)[0]
    reads = history.rows("runs", kind="read", process=given["process"], partition=partition)
    after = [row for row in reads if int_of(_operation(history, row), "invoke_us") > int_of(given, "at_us")]
    return given, after[0]


def plant_committed_records_read_again(history: History) -> None:
    """The owner in generation 3 reads ten records once more before it goes on."""
    _, first = _first_read_of_generation(history, 3, 2)
    more = _more(history)
    at = int_of(first, "first_offset")
    more.position[2] = at - 10
    index = more.operation(NEW, "fetch", 5_210_000)
    for number, run in enumerate(more.records(2, at - 10, at)):
        history.tables["runs"].append({**run, "process": NEW, "index": index, "position": number})
    for row in history.rows("assignments", process=NEW, partition=2):
        if row["from_offset"] == at:
            row["from_offset"] = at - 10
    history.tables["positions"].append(
        {
            "process": NEW,
            "index": index,
            "topic": TOPIC,
            "partition": 2,
            "fetch_offset": at - 10,
            "next_offset": at,
            "high_watermark": at,
            "log_start_offset": 0,
            "error": None,
        }
    )


def legal_read_again_after_a_truncation(history: History) -> None:
    plant_committed_records_read_again(history)
    _more(history).reset(NEW, 2, 10**6, 0, "truncated", 5_205_000)


def _renumbered(history: History) -> None:
    """The planted read comes first in its client's numbers too."""
    operations = sorted(history.rows("operations", process=NEW), key=lambda row: int_of(row, "invoke_us"))
    numbers = {row["index"]: number for number, row in enumerate(operations)}
    for table in ("operations", "runs", "positions", "commits", "resets", "metadata_epochs"):
        for row in history.rows(table, process=NEW):
            row["index"] = numbers.get(row["index"], row["index"])


def in_order(plant: Callable[[History], None]) -> Callable[[History], None]:
    def planted(history: History) -> None:
        plant(history)
        _renumbered(history)

    return planted


def plant_skip_between_owners(history: History) -> None:
    """The owner in generation 3 begins behind the first read of its time."""
    _, first = _first_read_of_generation(history, 3, 2)
    for row in history.rows("runs", process=NEW, index=first["index"], partition=2):
        history.drop("runs", row)
    for row in history.rows("positions", process=NEW, index=first["index"], partition=2):
        history.drop("positions", row)


def _skip_and_reset(history: History, short_by: int) -> None:
    """The owner's position is moved over what it omits, but for the last ``short_by`` offsets."""
    _, first = _first_read_of_generation(history, 3, 2)
    left_out = history.rows("runs", process=NEW, index=first["index"], partition=2)
    plant_skip_between_owners(history)
    at = min(int_of(row, "first_offset") for row in left_out)
    end = max(int_of(row, "first_offset") + int_of(row, "count") for row in left_out)
    _more(history).reset(NEW, 2, at, end - short_by, "no_offset", 5_203_000)


def legal_skip_to_the_latest(history: History) -> None:
    _skip_and_reset(history, 0)


def plant_skip_of_one_more_than_the_reset(history: History) -> None:
    _skip_and_reset(history, 1)


def plant_records_left_out_by_the_mirror(history: History) -> None:
    history.drop("target_runs", history.rows("target_runs", partition=1)[0])


def _mirror_began_later(history: History, short_by: int) -> None:
    """The mirror's position is moved over what it omits, but for the last ``short_by`` offsets."""
    copied = history.rows("target_runs", partition=1)[0]
    plant_records_left_out_by_the_mirror(history)
    last = int_of(copied, "first_sequence") + int_of(copied, "count") - 1
    written = history.rows("runs", kind="read", process="final", partition=1, writer=copied["writer"])
    end = max(
        int_of(row, "first_offset") + last - int_of(row, "first_sequence") + 1
        for row in written
        if int_of(row, "first_sequence") <= last < int_of(row, "first_sequence") + int_of(row, "count")
    )
    _more(history).reset(MIRROR, 1, -1, end - short_by, "no_offset", 500_000)


def legal_records_left_out_by_a_mirror_that_began_later(history: History) -> None:
    _mirror_began_later(history, 0)


def plant_one_more_left_out_than_the_mirror_s_reset(history: History) -> None:
    _mirror_began_later(history, 1)


def legal_target_not_read_to_its_end(history: History) -> None:
    plant_records_left_out_by_the_mirror(history)
    history.drop("target_runs", history.rows("target_runs", partition=1, count=0)[0])


def plant_fetch_before_the_epoch(history: History) -> None:
    """The offset from which the client resumes in generation 2 was committed under an epoch that it learns later."""
    for row in history.rows("commits", process=NEW, draft=True):
        if int_of(row, "metadata_epoch") >= 0:
            row["metadata_epoch"] = 5
    for row in history.rows("metadata_epochs", process=NEW):
        row["metadata_epoch"] = max(5, int_of(row, "metadata_epoch")) if int_of(row, "at_us") > 2_000_000 else 4


def legal_fetch_after_the_epoch(history: History) -> None:
    """The same, and it learns it before it fetches."""
    plant_fetch_before_the_epoch(history)
    more = Groups(history.tables, index={NEW: 10_000}, epoch=5, seq=3_000_000)
    for row in history.rows("commits", process=NEW, kind="fetched", generation=2):
        more.metadata(2, 5, int_of(row, "at_us") + 500)


PLANTED_GROUPS: dict[str, tuple[Callable[[History], None], set[str]]] = {
    "older metadata taken": (plant_older_metadata_taken, {"nonmonotonic-metadata-epoch"}),
    "metadata without epoch": (plant_metadata_without_an_epoch_taken, {"nonmonotonic-metadata-epoch"}),
    "older metadata, come back": (legal_older_metadata_after_coming_back, set()),
    "node goes back": (plant_node_goes_back, {"nonmonotonic-metadata-epoch"}),
    "epoch twice": (plant_epoch_twice_in_the_log, {"nonmonotonic-metadata-epoch"}),
    "epoch noted by two": (legal_epoch_noted_by_two, set()),
    "smaller epoch committed": (plant_smaller_epoch_committed, {"commit-regression"}),
    "smaller epoch after old version": (legal_smaller_epoch_after_an_old_version, set()),
    "smaller epoch overlapping": (legal_smaller_epoch_in_an_overlapping_request, set()),
    "older generation": (plant_older_generation_commits, {"commit-regression"}),
    "older value fetched": (plant_older_value_fetched, {"commit-regression"}),
    "nothing fetched": (plant_nothing_fetched, {"commit-regression"}),
    "nothing committed at the end": (plant_nothing_committed_at_the_end, {"commit-regression"}),
    "last offset at the end": (legal_last_offset_at_the_end, set()),
    "epoch not loaded": (plant_epoch_not_loaded, {"commit-regression"}),
    "value of unknown end": (legal_value_of_unknown_end_fetched, set()),
    "value of long ago": (plant_value_of_long_ago_fetched, {"commit-regression"}),
    "refused without reason": (plant_commit_refused_without_a_greater_epoch, {"commits-accepted"}),
    "refused after greater epoch": (legal_commit_refused_after_a_greater_epoch, set()),
    "refused after old version": (plant_commit_refused_after_an_old_version, {"commits-accepted"}),
    "refused beside old version": (legal_commit_refused_beside_an_old_version, set()),
    "refused by unknown error": (plant_commit_refused_for_no_known_reason, {"commits-accepted"}),
    "given to two": (plant_partition_given_to_two, {"one-group-leader"}),
    "given to two, deleted": (legal_partition_given_by_the_group_after_a_deleted_one, set()),
    "given to two, deleted later": (plant_partition_given_to_two_before_the_deletion, {"one-group-leader"}),
    "given to two, another deleted": (plant_partition_given_to_two_beside_a_deleted_group, {"one-group-leader"}),
    "given again": (legal_partition_given_again_in_a_generation, set()),
    "rewinds": (plant_rewind, {"rewinds"}),
    "reset after truncation": (legal_reset_after_a_truncation, set()),
    "reset below truncation": (plant_reset_below_a_truncation, {"rewinds"}),
    "reset before truncation": (plant_reset_before_a_truncation, {"rewinds"}),
    "reset long after truncation": (plant_reset_long_after_a_truncation, {"rewinds"}),
    "reset below log start": (legal_reset_below_the_log_start, set()),
    "reset above the end": (legal_reset_above_the_end, set()),
    "redelivery": (in_order(plant_committed_records_read_again), {"redelivery"}),
    "read again after truncation": (in_order(legal_read_again_after_a_truncation), set()),
    "group-skip": (plant_skip_between_owners, {"group-skip"}),
    "skip to the latest": (legal_skip_to_the_latest, set()),
    "no-fetch-before-epoch": (plant_fetch_before_the_epoch, {"no-fetch-before-epoch"}),
    "fetch after the epoch": (legal_fetch_after_the_epoch, set()),
    "mirror-complete": (plant_records_left_out_by_the_mirror, {"mirror-complete"}),
    "one more than the reset": (plant_skip_of_one_more_than_the_reset, {"group-skip"}),
    "mirror left out one more": (plant_one_more_left_out_than_the_mirror_s_reset, {"mirror-complete"}),
    "mirror began later": (legal_records_left_out_by_a_mirror_that_began_later, set()),
    "target not read": (legal_target_not_read_to_its_end, set()),
    "metadata requested, left": (legal_metadata_requested_before_leaving, set()),
    "left, older metadata taken": (plant_older_metadata_of_one_life, {"nonmonotonic-metadata-epoch"}),
}
