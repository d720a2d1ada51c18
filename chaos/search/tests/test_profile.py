"""The profile of a search: it reports the parts and the kinds of events, and changes nothing that is played."""

import pytest

from chaos.checks.replication.committed_records import NoAckedLost
from chaos.search.profile import Profile
from chaos.sim.machine import Machine
from chaos.sim.one_seed import play_seed
from scenarios import loader


@pytest.mark.thorough
def test_profile_reports_parts_and_kinds_without_changing_runs() -> None:
    plain = play_seed(loader.find("1"), 4_600_002, hashed=True).verdict
    handle, acted = Machine._handle, NoAckedLost.acted
    profile = Profile()
    with profile.measured():
        assert play_seed(loader.find("1"), 4_600_002, hashed=True).verdict == plain
    assert (Machine._handle, NoAckedLost.acted) == (handle, acted)
    assert sum(profile.counts[kind] for kind in profile.kinds) == plain.events
    assert 0 < sum(profile.parts.values()) < profile.whole_ns
    text = "\n".join(profile.table())
    assert " nodes" in text
    assert "check no-starvation" in text
    assert "request of a client: Fetch" in text
