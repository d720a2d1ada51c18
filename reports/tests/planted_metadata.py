"""One violation of each guarantee of the metadata, in a legal history; both judges must find exactly that one."""

import json
from collections.abc import Callable

from reports.tests.control_plane import DESCRIBER, FIRST, NODES, READER, SET, TOPICS
from reports.tests.history import History, Row, int_of


def plant_part_of_a_topic(history: History) -> None:
    row = history.rows("metadata_reads", process=READER, topic_set=SET.format(4))[0]
    row["partitions_seen"] = 2


def plant_part_of_a_set(history: History) -> None:
    """A reader sees the second topic of a set only in its next response."""
    first, second = history.rows("metadata_reads", process=READER, topic_set=SET.format(4), node=2)
    later = history.rows("operations", process=READER)[-1]
    index = int_of(later, "index") + 1
    history.tables["operations"].append({**later, "index": index, "complete_us": 5_000_000})
    second["index"] = index
    assert first["index"] != index


def plant_part_of_a_deletion(history: History) -> None:
    """At the end one of two deleted topics is still there at a node: so the deletion was torn, and not lost there."""
    gone = history.rows("metadata_reads", process=READER, topic_set=SET.format(2), present=False)
    assert len(gone) == 2 * TOPICS
    history.drop("metadata_reads", gone[0])


def plant_two_digests(history: History) -> None:
    image = next(
        row
        for row in history.rows("trace", what="metadata_image", node=1)
        if json.loads(str(row["detail"]))["offset"] == 109
    )
    image["detail"] = json.dumps(json.loads(str(image["detail"])) | {"digest": "f" * 16}, sort_keys=True)


def _publish(history: History, offset: int) -> None:
    """Node 2 publishes its metadata as of that offset, too."""
    image = history.rows("trace", what="metadata_image", node=2)[0]
    row = {**image, "seq": int_of(image, "seq") + 1_000}
    _retell(row, offset=offset)
    history.tables["trace"].append(row)


def plant_image_inside_a_transaction(history: History) -> None:
    _publish(history, 108)


def plant_image_inside_an_aborted_transaction(history: History) -> None:
    _publish(history, 104)


def legal_image_of_an_abort(history: History) -> None:
    _publish(history, 106)


def plant_half_created(history: History) -> None:
    """The second attempt finds one topic of two."""
    row = history.rows("changes", topic_set=SET.format(4))[0]
    row["error"] = None


def _forget_set(history: History, number: int, node: int) -> None:
    for row in history.rows("metadata_reads", topic_set=SET.format(number), final=True, node=node):
        history.drop("metadata_reads", row)


def plant_lost_metadata(history: History) -> None:
    """An acknowledged set is missing at one node at the end; no reader had seen it there."""
    _forget_set(history, 4, 0)


def plant_vanished(history: History) -> None:
    """A set that was not deleted is gone from a response, though it is back at the end."""
    shown = history.rows("metadata_reads", process=READER, topic_set=SET.format(2), present=False)
    for row in shown:
        other = str(row["topic"]).replace(SET.format(2), SET.format(1))
        history.tables["metadata_reads"].append({**row, "topic": other, "topic_set": SET.format(1)})


def plant_second_effect(history: History) -> None:
    for row in history.rows("metadata_reads", topic_set=SET.format(4), final=True):
        row["topic_id"] = f"{77:032x}"


def plant_deleted_stays(history: History) -> None:
    for node in range(NODES):
        index = history.rows("operations", process=DESCRIBER, node=node)[0]["index"]
        for row in history.rows("metadata_reads", process=READER, topic_set=SET.format(2), node=2, present=True):
            history.tables["metadata_reads"].append(
                {**row, "process": DESCRIBER, "index": index, "node": node, "final": True}
            )


def plant_old_config(history: History) -> None:
    for row in history.rows("metadata_reads", topic_set=SET.format(3), final=True):
        row["value"] = FIRST


def plant_unrequested_topic(history: History) -> None:
    for row in history.rows("metadata_reads", topic_set=SET.format(1), final=True):
        renamed = {name: str(row[name]).replace("admin-0.1", "admin-0.9") for name in ("topic", "topic_set")}
        history.tables["metadata_reads"].append({**row, **renamed, "topic_id": f"9{str(row['topic_id'])[1:]}"})


def plant_refused_topic(history: History) -> None:
    """Set 6 was never created, yet all nodes have it."""
    for row in history.rows("metadata_reads", topic_set=SET.format(1), final=True):
        renamed = {name: str(row[name]).replace("admin-0.1", "admin-0.6") for name in ("topic", "topic_set")}
        history.tables["metadata_reads"].append({**row, **renamed, "topic_id": f"6{str(row['topic_id'])[1:]}"})


def plant_topic_that_existed(history: History) -> None:
    plant_refused_topic(history)
    for row in history.rows("changes", topic_set=SET.format(6), change="create"):
        row["error"] = "TOPIC_ALREADY_EXISTS"


def plant_two_leaders(history: History) -> None:
    (row,) = (each for each in history.rows("trace", what="leader_elected", node=1))
    row["detail"] = json.dumps({"epoch": 1, "start_offset": 20})
    (row,) = (each for each in history.rows("trace", what="controller_activated", node=1))
    row["detail"] = json.dumps({"epoch": 1, "offset": 20})


def plant_second_abort(history: History) -> None:
    """A zombie's Abort is committed behind the successor's."""
    for row in history.rows("trace", what="metadata_committed"):
        fields = json.loads(str(row["detail"]))
        if fields["offset"] == 110:
            row["detail"] = json.dumps(fields | {"kind": "abort"})


def plant_download_from_the_start(history: History) -> None:
    """Killed three times near its end, it begins at 0 each time."""
    first = [row for row in history.rows("trace", node=2, incarnation=0) if str(row["what"]).startswith("download")]
    for incarnation in (2, 3, 4):
        for row in history.rows("trace", node=2, incarnation=1):
            if str(row["what"]).startswith("download") and row["what"] != "download_finished":
                row["incarnation"] = 5
        for row in first:
            history.tables["trace"].append({**row, "incarnation": incarnation})
            history.tables["trace"].append({**row, "incarnation": incarnation, "seq": int_of(row, "seq") + 100})
    for row in history.rows("trace", what="download_finished"):
        row["incarnation"] = 5


def _download_note(history: History, what: str, incarnation: int) -> Row:
    return history.rows("trace", node=2, incarnation=incarnation, what=what)[0]


def _retell(row: Row, **fields: int) -> None:
    row["detail"] = json.dumps(json.loads(str(row["detail"])) | fields, sort_keys=True)


def plant_position_kept_across_leaders(history: History) -> None:
    _retell(_download_note(history, "download_started", 1), leader=1)


def plant_position_kept_with_new_id(history: History) -> None:
    _retell(_download_note(history, "download_started", 1), end_offset=103)


def plant_chunk_at_another_position(history: History) -> None:
    _retell(history.rows("trace", node=2, incarnation=1, what="download_chunk")[1], position=1_000)


def plant_download_without_end(history: History) -> None:
    """Each time it has nearly all of a snapshot, there is a newer one."""
    finished = _download_note(history, "download_finished", 1)
    finished["incarnation"] = 9
    first = history.rows("trace", node=2, incarnation=0, what="download_started")
    chunks = [row for each in (0, 1) for row in history.rows("trace", node=2, incarnation=each, what="download_chunk")]
    for incarnation in range(2, 9):
        started_note = {**first[0], "incarnation": incarnation}
        _retell(started_note, end_offset=102 + incarnation)
        history.tables["trace"].append(started_note)
        for row in (chunks[0], chunks[2], chunks[3]):
            copied = {**row, "incarnation": incarnation, "seq": int_of(row, "seq") + 100}
            history.tables["trace"].append(copied)


def _download_growing_ones(history: History, last: int) -> None:
    """Before it is whole, its snapshot of 3,500 bytes is replaced by two of 7,000 and 9,000, and each of these is lost
    before its last chunk. ``last`` chunks of a fourth follow. With five beginnings 24,500 bytes are enough.
    """
    _download_note(history, "download_finished", 1)["incarnation"] = 9
    started_note, chunk = (_download_note(history, what, 0) for what in ("download_started", "download_chunk"))
    for incarnation, size, count in ((2, 7_000, 6), (3, 9_000, 8), (4, 9_000, last)):
        started = {**started_note, "incarnation": incarnation}
        _retell(started, end_offset=102 + incarnation, size=size)
        history.tables["trace"].append(started)
        for place in range(count):
            received = {**chunk, "incarnation": incarnation, "seq": int_of(started_note, "seq") + 1 + place}
            _retell(received, position=place * 1_000, size=size)
            history.tables["trace"].append(received)


def legal_download_of_growing_ones(history: History) -> None:
    _download_growing_ones(history, 6)


def plant_download_beyond_the_third(history: History) -> None:
    _download_growing_ones(history, 7)


def plant_damaged_download(history: History) -> None:
    row = _download_note(history, "download_finished", 1)
    why = "__cluster_metadata-0/00000000000000000102-0000000001.checkpoint.part at byte 83: batch has a wrong CRC"
    history.tables["trace"].append(
        {**row, "what": "download_discarded", "seq": int_of(row, "seq") - 1, "detail": json.dumps({"why": why})}
    )
    row["seq"] = int_of(row, "seq") + 1


def legal_download_without_response(history: History) -> None:
    """A node dies after its first request; its next download, of a newer snapshot, finds one that fits."""
    started_note = {**_download_note(history, "download_started", 0), "node": 1, "incarnation": 0}
    _retell(started_note, size=-1)
    history.tables["trace"].append(started_note)


def legal_unknown_changes(history: History) -> None:
    """A change of unknown end may be missing everywhere; a configuration sent twice may arrive late."""
    for row in history.rows("metadata_reads", topic_set=SET.format(5)):
        history.drop("metadata_reads", row)
    plant_old_config(history)
    for row in history.rows("changes", value=FIRST):
        row["attempts"] = 2


PLANTED_METADATA: dict[str, tuple[Callable[[History], None], set[str]]] = {
    "unknown changes": (legal_unknown_changes, set()),
    "part of a topic": (plant_part_of_a_topic, {"torn-metadata"}),
    "part of a set": (plant_part_of_a_set, {"torn-metadata"}),
    "part of a deletion": (plant_part_of_a_deletion, {"torn-metadata"}),
    "two digests": (plant_two_digests, {"torn-metadata"}),
    "image inside": (plant_image_inside_a_transaction, {"torn-metadata"}),
    "image inside what was aborted": (plant_image_inside_an_aborted_transaction, {"torn-metadata"}),
    "image of an abort": (legal_image_of_an_abort, set()),
    "half created": (plant_half_created, {"torn-metadata"}),
    "lost-metadata": (plant_lost_metadata, {"lost-metadata"}),
    "vanished": (plant_vanished, {"lost-metadata"}),
    "second effect": (plant_second_effect, {"lost-metadata"}),
    "deleted stays": (plant_deleted_stays, {"lost-metadata"}),
    "old config": (plant_old_config, {"lost-metadata"}),
    "unrequested topic": (plant_unrequested_topic, {"lost-metadata"}),
    "refused topic": (plant_refused_topic, {"lost-metadata"}),
    "two leaders": (plant_two_leaders, {"one-leader-per-epoch"}),
    "download from the start": (plant_download_from_the_start, {"snapshot-transfer-bounded"}),
    "download without a response": (legal_download_without_response, set()),
    "position kept across leaders": (plant_position_kept_across_leaders, {"snapshot-transfer-bounded"}),
    "position kept with a new id": (plant_position_kept_with_new_id, {"snapshot-transfer-bounded"}),
    "chunk at another position": (plant_chunk_at_another_position, {"snapshot-transfer-bounded"}),
    "damaged download": (plant_damaged_download, {"snapshot-transfer-bounded"}),
    "download without end": (plant_download_without_end, {"snapshot-transfer-bounded"}),
    "download of growing ones": (legal_download_of_growing_ones, set()),
    "download beyond the third": (plant_download_beyond_the_third, {"snapshot-transfer-bounded"}),
    "second abort": (plant_second_abort, {"one-abort-per-begin"}),
}
"""Planted violations, with the guarantees that they violate."""
