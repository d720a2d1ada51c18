"""Which tables of the history a load can leave, besides those that every load leaves. The judge prepares itself by
this."""

from reports.warm_judge.expected import SELDOM
from scenarios.load import Load

_GROUP = ("commits", "memberships", "resets", "metadata_epochs")


def tables_left(load: Load) -> frozenset[str]:
    """Names of SELDOM. A run that leaves another table takes longer to judge."""
    parts: tuple[tuple[object, tuple[str, ...]], ...] = (
        (load.admins, ("changes", "metadata_reads")),
        (load.metadata_readers, ("metadata_reads",)),
        (load.groups, _GROUP),
        (any(each.view for each in load.groups), ("views",)),
        (load.mirror, (*_GROUP, "copies", "target_runs")),
        (load.has_transactions, ("transactions",)),
        (load.workers, (*_GROUP, "transforms")),
        (load.janitors, ("told_transactions",)),
        (any(each.is_compacted for each in load.topics), ("keyed_writes",)),
        (any(each.metadata_epoch for each in load.producers), ("metadata_epochs",)),
        (any(each.metadata_epoch for each in load.admins), ("metadata_epochs",)),
    )
    left = frozenset(name for part, names in parts if part for name in names)
    assert left <= SELDOM, f"{left - SELDOM} are no tables that few runs have"
    return left
