"""A mutant of the client's side goes into the fleet's processes, and leaves a file once it was reached."""

from pathlib import Path

import msgspec
import pytest

from bench.fleet.spec import FleetSpec, SpecError, call_prelude
from chaos.live import client_mutant
from chaos.live.run_folder import RunFolder
from chaos.mutants import mutant
from chaos.mutants.mutant import Mutant
from reference_broker.client.metadata_cache import MetadataCache
from reference_broker.client.metadata_refresher import MetadataRefresher
from scenarios.load import Load

NO_WAIT = Mutant(
    "waits_for_nothing",
    "reference_broker.client.metadata_refresher:MetadataRefresher.has_reached",
    lambda original, self, min_metadata_epoch: True,  # noqa: ARG005
    side="client",
)
SPEC = FleetSpec(["node-0:1"], Load(seconds=1))


def test_process_that_makes_clients_changes_them_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetadataRefresher, "has_reached", MetadataRefresher.has_reached)  # Put back at the end.
    monkeypatch.setattr(client_mutant, "by_name", {NO_WAIT.name: NO_WAIT}.__getitem__)
    monkeypatch.setattr(client_mutant, "apply", mutant.apply)
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    spec = msgspec.structs.replace(
        SPEC, prelude=client_mutant.PRELUDE, prelude_words=client_mutant.words_for(NO_WAIT.name, folder)
    )
    call_prelude(spec)
    assert not client_mutant.reached(folder)
    assert MetadataRefresher((), MetadataCache(), True).has_reached(2)
    assert client_mutant.reached(folder)


def test_without_a_prelude_nothing_is_called_and_one_that_is_not_there_is_refused() -> None:
    call_prelude(SPEC)
    with pytest.raises(SpecError, match="nowhere"):
        call_prelude(msgspec.structs.replace(SPEC, prelude="nowhere:at_all"))
