"""The simulator judges what clients saw of metadata, finds what is planted as the Spark jobs do, and nothing else."""

import json
from dataclasses import fields
from typing import Any

import pytest

from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.metadata.admin_changes import LostMetadata, TornMetadata
from chaos.checks.tests.check_context import check_context, note_row
from reports.rows import ChangeRow, MetadataReadRow, OperationRow
from reports.tests import played as recorded
from reports.tests.planted_metadata import PLANTED_METADATA

MINE = ("torn-metadata", "lost-metadata")


def broken_by(tables: dict[str, list[dict[str, Any]]]) -> set[str]:
    rows = History()
    for table, row_class in (("operations", OperationRow), ("changes", ChangeRow), ("metadata_reads", MetadataReadRow)):
        names = [field_.name for field_ in fields(row_class)]
        rows.add([row_class(*(row[name] for name in names)) for row in tables[table]])
    checks: tuple[Check, ...] = (TornMetadata(check_context()), LostMetadata(check_context()))
    for check in checks:
        for row in tables["trace"]:
            if row["what"] in check.rows:
                check.trace(note_row(row["at_us"], row["node"], row["what"], **json.loads(row["detail"])))
        check.end(rows)
    return {check.guarantee for check in checks if check.violations}


@pytest.mark.thorough
@pytest.mark.clause("T-5", "T-10")
@pytest.mark.parametrize("name", ["clean", *PLANTED_METADATA])
def test_exactly_the_planted_guarantee_breaks(name: str) -> None:
    plant, expected = PLANTED_METADATA.get(name, (lambda _: None, set()))
    planted = recorded.generate(3)
    plant(planted)
    assert broken_by(planted.tables) == {each for each in expected if each in MINE}
