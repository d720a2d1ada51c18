"""Mutants of the snapshots of the metadata log (KIP-630)."""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Mutant
from reference_broker.quorum.snapshots.file_names import made_path, part_path
from reference_broker.quorum.snapshots.partial import UNKNOWN_SIZE, Partial

PARTIAL = "reference_broker.quorum.snapshots.download:read_partial"
DOWNLOAD = "reference_broker.quorum.snapshots.download:SnapshotDownload"
GENERATOR = "reference_broker.metadata.snapshots.generator:SnapshotGenerator"
CLEANER = "reference_broker.quorum.snapshots.cleaner:SnapshotCleaner"
LEAK_US = 50_000
Function = Callable[..., Any]


def _append_after_torn_tail(original: Function) -> Function:
    def read_partial(disk: Any, snapshot: Any) -> Generator[None, None, Any]:
        path = part_path(snapshot)
        before = disk.read(path, 0, disk.size(path)) if disk.exists(path) else b""
        partial = yield from original(disk, snapshot)
        if partial is not None and len(before) > partial.length:
            disk.append(path, [before[partial.length :]])
        return partial

    return read_partial


def _download_restarts_at_zero(original: Function) -> Function:  # noqa: ARG001
    def recover(self: Any, job: Any) -> Generator[None, None, None]:
        self._anew(job, "a start forgets what was downloaded")
        yield from ()

    return recover


def _blind_append(original: Function) -> Function:
    def take(self: Any, job: Any, piece: Any) -> None:
        held = 0 if self._partial is None else self._partial.length
        original(self, job, replace(piece, position=held))

    return take


def _position_kept_with_new_id(original: Function) -> Function:
    def known(self: Any, job: Any) -> Any:
        partial = self._partial
        if partial is None or partial.leader != job.leader or partial.id == job.id:
            return original(self, job)
        disk = partial.disk
        held = disk.read(part_path(partial.id), 0, partial.length)
        self._store.drop_partial()
        renamed = Partial(disk, partial.leader, job.id, UNKNOWN_SIZE)
        renamed.begin()
        renamed.append(held)
        self._store.partial, self._partial = job.id, renamed
        return renamed

    return known


def _position_kept_across_leaders(original: Function) -> Function:
    def known(self: Any, job: Any) -> Any:
        partial = self._partial
        if partial is not None and partial.id == job.id:
            partial.leader = job.leader
        return original(self, job)

    return known


def _rename_before_sync(original: Function) -> Function:  # noqa: ARG001
    def written(self: Any, attempt: Any) -> None:
        path, ports = made_path(attempt.id), self._surroundings.ports
        ports.note("snapshot_written", ("end_offset", attempt.id.offset), ("epoch", attempt.id.epoch))
        self._durable(attempt)
        ports.sync((path,), lambda: None)

    return written


def _superseded_snapshot_deleted_at_once(original: Function) -> Function:  # noqa: ARG001
    def due_us(self: Any, snapshot: Any) -> int:  # noqa: ARG001
        return int(self._surroundings.now_us)

    return due_us


def _writes_leak_into_snapshot(original: Function) -> Function:
    def start(self: Any, image: Any) -> None:
        """Writes, a moment later, what is newest then, under the name of what was newest at the freeze point."""
        ports = self._surroundings.ports
        self._making = image

        def freeze() -> None:
            self._making = None
            original(self, replace(self._image, provenance=image.provenance))

        ports.set_timer(ports.now().mono_us + LEAK_US, freeze)

    return start


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "append_after_torn_tail",
        "after a restart the next piece is written behind the torn bytes of the last one",
        "node",
        PARTIAL,
        ("disk", "snapshot"),
        _append_after_torn_tail,
        ("S-8", "S-9", "S-11"),
    ),
    Mutant(
        "download_restarts_at_zero",
        "a restart forgets what was downloaded before it",
        "node",
        f"{DOWNLOAD}._recover",
        ("self", "job"),
        _download_restarts_at_zero,
        ("S-11",),
    ),
    Mutant(
        "blind_append",
        "whatever bytes arrive are appended, without a look at their position",
        "node",
        f"{DOWNLOAD}._take",
        ("self", "job", "piece"),
        _blind_append,
        ("S-8",),
    ),
    Mutant(
        "position_kept_with_new_id",
        "a download goes on at its position although the snapshot is another one",
        "node",
        f"{DOWNLOAD}._known",
        ("self", "job"),
        _position_kept_with_new_id,
        ("S-10", "S-11"),
    ),
    Mutant(
        "position_kept_across_leaders",
        "a download goes on at its position although the leader is another one",
        "node",
        f"{DOWNLOAD}._known",
        ("self", "job"),
        _position_kept_across_leaders,
        ("S-11",),
    ),
    Mutant(
        "rename_before_sync",
        "a snapshot gets its name before its bytes are durable",
        "node",
        f"{GENERATOR}._written",
        ("self", "attempt"),
        _rename_before_sync,
        ("S-9",),
    ),
    Mutant(
        "superseded_snapshot_deleted_at_once",
        "a snapshot goes when there is a newer one, even while it is fetched",
        "node",
        f"{CLEANER}._due_us",
        ("self", "snapshot"),
        _superseded_snapshot_deleted_at_once,
        ("S-15",),
    ),
    Mutant(
        "writes_leak_into_snapshot",
        "a snapshot holds changes that came after its end offset",
        "node",
        f"{GENERATOR}._start",
        ("self", "image"),
        _writes_leak_into_snapshot,
        ("S-12", "S-15"),
    ),
)
