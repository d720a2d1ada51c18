"""Histories that the tests of the Spark jobs plant, for the simulator's checks."""

from typing import cast

from chaos.checks.history import History
from reports.columns import ROW_TABLES
from reports.rows import HistoryRow
from reports.tests import history as planted


def history_of(tables: planted.History) -> History:
    found = History()
    for kind, table in ROW_TABLES.items():
        if hasattr(found, table.name):
            found.add([cast(HistoryRow, kind(**row)) for row in tables.tables.get(table.name, [])])
    return found
