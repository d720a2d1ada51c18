"""What goes wrong around a run, as opposed to inside the node that is tested."""


class SetupError(Exception):
    """The run cannot be set up; the message is one sentence that says what to do. Exit code 2."""


class NodeDied(Exception):  # noqa: N818  (it says what happened)
    """A node's process ended although no fault asked for it; the message carries its exit and last log lines.
    Exit code 4."""


class EndedItself(NodeDied):
    """A node found that it cannot go on with the metadata that it holds: a breach of quorum-converges, no crash."""
