"""The folder that a run leaves. reports/schema.py and reports/manifest.py describe what is in it."""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from chaos.live.errors import SetupError
from chaos.live.trace_spool import convert_spools, write_table
from reports.parts import OPEN
from reports.rows import BrokerSample, FaultRow
from reports.schema import BROKER, FAULTS

PARQUET_END = b"PAR1"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths below one run's folder, and what is done with them."""

    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def data(self) -> Path:
        """The nodes' data folders, one for each."""
        return self.path / "data"

    @property
    def mirror_target(self) -> Path:
        """The data of the cluster that a mirror copies to."""
        return self.data / "target"

    @property
    def spools(self) -> Path:
        return self.path / "trace" / "spool"

    @property
    def claims(self) -> Path:
        """The claims of faults' hits by nodes (chaos.rules). The folder is removed when the trace is collected."""
        return self.path / "trace" / "claims"

    def make(self) -> None:
        """Raises SetupError if the folder holds something already or cannot be written."""
        try:
            if self.path.exists() and any(self.path.iterdir()):
                raise SetupError(f"The folder {self.path} is not empty: give --out a new one.")
            for folder in (self.logs, self.data, self.spools):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise SetupError(
                f"Cannot write to {self.path} ({failure.strerror}): give --out another folder."
            ) from failure

    def discard(self) -> None:
        """Removes the folder of a run that never began, so that it can be tried again."""
        shutil.rmtree(self.path, ignore_errors=True)

    def write_faults(self, rows: Iterable[FaultRow]) -> None:
        ordered = sorted(rows, key=lambda row: (row.at_us, row.name, row.hit))
        write_table(FAULTS, (list(row.values()) for row in ordered), self.path / "faults.parquet")

    def write_samples(self, rows: Iterable[BrokerSample]) -> None:
        write_table(BROKER, (list(row.values()) for row in rows), self.path / "trace" / "broker.parquet")

    def set_torn_aside(self) -> list[str]:
        """Gives another name to each file that its writer did not finish, and returns these names. The file of a writer
        that was killed has no footer, so a judge cannot read it."""
        opened = self.path.glob(f"*/*{OPEN}")
        torn = [*opened, *(each for each in self.path.glob("*/*.parquet") if not _is_whole(each))]
        return [each.rename(each.with_suffix(".torn")).name for each in sorted(torn)]

    def collect_trace(self) -> int:
        """Writes the spools of all nodes as Parquet, and removes them. Returns the number of rows of the trace."""
        rows = convert_spools(self.spools, self.path)
        for spool in self.spools.iterdir():
            spool.unlink()
        self.spools.rmdir()
        shutil.rmtree(self.claims, ignore_errors=True)
        return rows


def _is_whole(parquet: Path) -> bool:
    with parquet.open("rb") as file:
        file.seek(max(0, parquet.stat().st_size - len(PARQUET_END)))
        return file.read() == PARQUET_END
