"""Faults at the operations of a node on its disk."""

import errno
import os
from functools import partial
from random import Random

from chaos.interceptor.actions import FaultActions
from chaos.interceptor.rules import Rule, RuleBook, matches_operation, matches_write
from chaos.interceptor.watched_disk import WatchedDisk, WriteFault
from reference_broker.core.events import Sync, SyncFailed
from reference_broker.ports.disk import Disk, DiskError, UndoFailed


class DiskOperationFaults:
    """Applies the rules for operations (``disk``) and for the bytes of writes (``disk_write``)."""

    def __init__(self, book: RuleBook, actions: FaultActions, random: Random) -> None:
        self._book = book
        self._actions = actions
        self._random = random
        self.sees_syncs = book.has_rules_at("disk")
        self._has_rules = self.sees_syncs or book.has_rules_at("disk_write")

    def watch(self, disk: Disk) -> Disk:
        return WatchedDisk(disk, self._before_write, self._before_operation) if self._has_rules else disk

    def sync_fails(self, sync: Sync) -> bool:
        """Return whether a rule fails the sync. The node gets the failure after the rule's delay."""
        matches = partial(matches_operation, names=("sync",), paths=sync.paths)
        firing = self._book.first_hit("disk", "", matches)
        if firing is None:
            return False
        rule, hit = firing
        first = sync.paths[0]
        self._book.report(rule, hit, detail=f"sync {first} and {len(sync.paths) - 1} more{_shown_error(rule)}")
        if rule.kind != "disk_error":
            self._book.inject_at_node(rule)
            return False
        self._actions.sync_fails(sync.paths)
        failed = SyncFailed(sync.token, str(_disk_error(rule, "sync", first)))
        self._actions.deliver_later(failed, self._book.delay_us(rule))
        return True

    def _before_operation(self, names: tuple[str, ...], paths: tuple[str, ...]) -> None:
        if not self._book.is_any_due("disk"):
            return
        matches = partial(matches_operation, names=names, paths=paths)
        firing = self._book.first_hit("disk", "", matches)
        if firing is None:
            return
        rule, hit = firing
        self._book.report(rule, hit, detail=f"{names[-1]} {paths[0]}{_shown_error(rule)}")
        if rule.kind != "disk_error":
            self._book.inject_at_node(rule)
            return
        if names[-1] == "sync" and rule.match.operation != "open":  # A file that was not opened was not synced.
            self._actions.sync_fails(paths)
        raise _disk_error(rule, names[-1], paths[0])

    def _before_write(self, path: str, position: int, size: int) -> WriteFault | None:
        if not self._book.is_any_due("disk_write"):
            return None
        firing = self._book.first_hit("disk_write", "", partial(matches_write, path=path, position=position))
        if firing is None:
            return None
        rule, hit = firing
        flips = rule.kind == "disk_bit_flipped"
        written_bytes = min(self._random.randint(*rule.cut_bytes), size - 1 if flips else size)
        self._book.report(rule, hit, detail=f"{path} at {position}, {written_bytes} of {size} bytes")
        return WriteFault(written_bytes, partial(self._fail_write, rule, path), flips)

    def _fail_write(self, rule: Rule, path: str) -> None:
        if rule.kind == "disk_write_failed":
            raise DiskError(f"{path}: no space left on device (injected by {rule.name})")
        if rule.kind == "disk_error":
            raise _disk_error(rule, "write", path)
        if rule.kind != "disk_bit_flipped":
            self._book.inject_at_node(rule)


def _shown_error(rule: Rule) -> str:
    return f": {rule.error}" if rule.kind == "disk_error" else ""


def _disk_error(rule: Rule, operation: str, path: str) -> DiskError | UndoFailed:
    """Return the error as the real disk words it."""
    number, kind = getattr(errno, rule.error), UndoFailed if rule.undo_fails else DiskError
    return kind(number, f"cannot {operation} {path}: {os.strerror(number)} (injected by {rule.name})")
