"""Independence of the checks: they use values of the broker, and none of its decisions."""

import ast
from pathlib import Path

import chaos.checks
import reports.jobs

VALUES = (
    "reference_broker.core.",  # events, effects, and the node whose state is judged
    "reference_broker.wire.",
    "reference_broker.log.unified_log",
    "reference_broker.metadata.cache",
    "reference_broker.metadata.delta",
    "reference_broker.metadata.image",
    "reference_broker.metadata.identifiers",
    "reference_broker.metrics.metrics",
    "reference_broker.replication.partitions",
    "reference_broker.groups.committed_offsets",
    "reference_broker.ports.disk",  # the error of a disk that lacks a file
    "reference_broker.records.batch",  # the error of a log that cannot be read
)


def imported_by(folder: Path) -> set[str]:
    modules: set[str] = set()
    for path in (path for path in folder.rglob("*.py") if "tests" not in path.parts):
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.ImportFrom) and each.module:
                modules.add(each.module)
            elif isinstance(each, ast.Import):
                modules.update(one.name for one in each.names)
    return modules


def test_checks_use_only_values_of_the_broker() -> None:
    used = {each for each in imported_by(Path(chaos.checks.__path__[0])) if each.startswith("reference_broker")}
    assert used
    assert not [each for each in used if not each.startswith(VALUES)]


def test_jobs_know_neither_the_broker_nor_the_checks() -> None:
    used = imported_by(Path(reports.jobs.__path__[0]))
    assert not [each for each in used if each.startswith(("reference_broker", "chaos"))]
