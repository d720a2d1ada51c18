"""The kinds of faults at times: the facts about each kind that both worlds go by.

What a kind does is in ``chaos/sim/timed_faults.py`` and ``stepwise_faults.py`` for the simulator, and in the other
files of this folder for real processes. ``scenarios.vocabulary.TIMED_KINDS`` describes the kinds for authors of
scenarios, and ``reports.page.faults`` has the words of the report. Neither may import this room.
"""

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault."""

    name: str
    ends_node: bool = False  # ends the node, which stays away for restart_after_s instead of duration_s
    in_steps: bool = False  # with real processes it has no duration: its end is polled until it is done
    cuts: Literal["", "others", "controller", "all"] = ""  # which links of its node go silent, both ways
    shown_at_end: bool = False  # fired only if there was something to damage or delete when the node had stopped
    changes_files: bool = False  # needs the node's data directory
    commands: tuple[str, ...] = ()  # the shell commands that do the same to a node of an external target
    only_simulated: bool = False

    @property
    def is_external(self) -> bool:
        """Whether a broker that is not ours can be the target."""
        return bool(self.commands or self.cuts) or self.changes_files or self.name.startswith("link_")


KINDS: Final = {
    kind.name: kind
    for kind in (
        FaultKind("node_killed", ends_node=True, commands=("kill", "start")),
        FaultKind("node_paused", commands=("pause", "resume")),
        # In a live run the page cache survives the death of any process.
        FaultKind("node_powered_off", ends_node=True, only_simulated=True),
        FaultKind("host_lost", ends_node=True, cuts="all", commands=("kill", "start")),
        FaultKind("node_terminated", ends_node=True, commands=("stop", "start")),
        FaultKind("node_isolated", cuts="others"),
        FaultKind("node_cut_from_controller", cuts="controller"),
        FaultKind("directory_missing", in_steps=True, changes_files=True),
        FaultKind("disk_slowed"),
        FaultKind("disk_full"),
        FaultKind("disk_bit_flipped", ends_node=True, shown_at_end=True),
        FaultKind("files_missing", ends_node=True, shown_at_end=True, changes_files=True),
        FaultKind("link_cut"),
        FaultKind("link_delayed"),
        FaultKind("link_reset"),
        FaultKind("link_truncated"),
        FaultKind("link_sliced"),
        FaultKind("link_slowed"),
        FaultKind("link_down"),
        FaultKind("rolling_bounce", in_steps=True, commands=("stop", "start")),
        FaultKind("feature_finalized", in_steps=True),
        FaultKind("requests_replayed", in_steps=True),
        FaultKind("requests_forged", in_steps=True),
    )
}
