"""Syncs: one in flight per file, later requests coalesce, completion exactly when all bytes are durable."""

import pytest

from reference_broker.core.effect_ports import Syncs
from reference_broker.core.events import Effect, Sync


def _syncs() -> tuple[Syncs, list[Effect], list[str]]:
    effects: list[Effect] = []
    return Syncs(effects), effects, []


def test_request_is_one_sync_of_all_files() -> None:
    syncs, effects, done = _syncs()
    syncs.request(("a", "b"), lambda: done.append("first"))
    assert effects == [Sync(1, ("a", "b"))]
    assert done == []
    syncs.synced(1)
    assert done == ["first"]
    assert not syncs.in_flight


def test_request_without_files_completes_at_once() -> None:
    syncs, effects, done = _syncs()
    syncs.request((), lambda: done.append("first"))
    assert (effects, done) == ([], ["first"])


def test_requests_during_sync_coalesce_into_next_one() -> None:
    syncs, effects, done = _syncs()
    syncs.request(("a",), lambda: done.append("first"))
    syncs.request(("a",), lambda: done.append("second"))
    syncs.request(("a",), lambda: done.append("third"))
    assert effects == [Sync(1, ("a",))]
    syncs.synced(1)
    assert done == ["first"]
    assert effects[1:] == [Sync(2, ("a",))]
    syncs.synced(2)
    assert done == ["first", "second", "third"]


def test_request_for_syncing_and_new_file_waits_for_both() -> None:
    syncs, effects, done = _syncs()
    syncs.request(("a",), lambda: done.append("first"))
    syncs.request(("a", "b"), lambda: done.append("both"))
    assert effects == [Sync(1, ("a",)), Sync(2, ("b",))]
    syncs.synced(2)
    assert done == []
    syncs.synced(1)
    assert effects[2:] == [Sync(3, ("a",))]
    assert done == ["first"]
    syncs.synced(3)
    assert done == ["first", "both"]


def test_token_completes_once() -> None:
    syncs, _, _ = _syncs()
    syncs.request(("a",), lambda: None)
    syncs.synced(1)
    with pytest.raises(KeyError):
        syncs.synced(1)
