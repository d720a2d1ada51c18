"""Errors around a run, not those inside a node."""


class SetupError(Exception):
    """The run cannot be set up. The message is one sentence that says what to do. The exit code is 2."""


class NodeDied(Exception):  # noqa: N818  (it says what happened)
    """A process ended although no fault caused that. The message says how it ended, and the last line of its log.
    The exit code is 4."""


class TargetDied(NodeDied):
    """A node of a target that is not ours ended by itself, or did not come back after a fault. That is the target's
    failure and not the suite's."""


class NotBack(NodeDied):
    """A node of ours did not get ready again after a fault. That breaks answers-after-heal, and is no crash."""


class EndedItself(NodeDied):
    """A node found that it cannot go on with its metadata. That breaks quorum-converges, and is no crash."""
