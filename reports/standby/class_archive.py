"""Make the archive of the classes that Spark loads (Java's class data sharing), so that Spark starts in half the time.

    python -m reports.standby.class_archive

takes half a minute; ``./crucible`` does so when it sets itself up. Java maps the archive instead of reading and
verifying twenty thousand classes from 280 files. It fits only the Java and the PySpark that it was made with, and is
optional: without it Spark starts more slowly.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from reports.errors import SetupError
from reports.spark import archive_for, archive_option, require_java, spark_session
from reports.standby.expected import Expected

QUERIES: Final = 16
"""Number of queries that are run. They load 98 % of the classes that all queries load, in half the time."""
ENDS_WITHIN_S: Final = 300.0
"""Limits the wait for Java to write the archive when it ends, which takes some ten seconds."""


def make(java: Path) -> Path:
    """Run some queries over one row in each table, and have Java archive the classes that this loaded."""
    from reports.standby.rehearsal import rehearsing, write_history  # needs PySpark, whose absence ``main`` reports

    remaining = iter(range(QUERIES))
    archive = archive_for(java)
    archive.parent.mkdir(parents=True, exist_ok=True)
    made = archive.with_suffix(f".jsa{os.getpid()}")
    with spark_session(java_options=archive_option("ArchiveClassesAtExit", made)) as spark:
        process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        with rehearsing(spark, Expected(external=True)) as rehearsal, tempfile.TemporaryDirectory() as history:
            write_history(Path(history))
            rehearsal.rehearse(Path(history), lambda: next(remaining, None) is None)
    assert process.stdin is not None, "PySpark ends its Java by closing this"
    process.stdin.close()
    process.wait(ENDS_WITHIN_S)
    if not made.exists():
        raise SetupError(f"{java} made no archive of classes; Spark starts without it.")
    for other in set(archive.parent.glob("*.jsa*")) - {made}:
        other.unlink(missing_ok=True)
    return made.rename(archive)


def main() -> int:
    try:
        sys.stdout.write(f"{make(require_java())}\n")
    except Exception as error:  # Whatever failed, Spark starts without an archive.
        sys.stdout.write(f"No archive of classes was made. {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
