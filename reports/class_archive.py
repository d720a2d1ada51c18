"""An archive of the classes that Spark loads (Java's class data sharing). Java maps it instead of reading and checking
twenty thousand classes from 280 files, so Spark starts in half the time.

    python -m reports.class_archive

makes it, which takes less than a minute; ``./crucible`` does so when it sets itself up. An archive serves the Java and
the PySpark that it was made with. Nothing depends on it.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from reports.errors import SetupError

FOLDER: Final = Path(sys.prefix) / "crucible-classes"
ENDS_WITHIN_S: Final = 300.0
"""Java writes the archive when it ends, which takes some ten seconds."""
_QUIET: Final = "-Xlog:disable -Xlog:all=error:stderr"
"""Java would print a warning for each class that it cannot archive, or if the archive does not fit."""


def options(java: Path) -> str:
    """What Java must be told to use the archive. It is empty if there is none."""
    archive = archive_for(java)
    return f"{_option('SharedArchiveFile', archive)} {_QUIET}" if archive.exists() else ""


def archive_for(java: Path) -> Path:
    """Where the archive for this ``java`` and this PySpark lies, if it was made."""
    from pyspark import __file__ as home
    from pyspark import __version__ as version

    real = java.resolve()
    told = f"{real} {real.stat().st_mtime_ns} {home} {version}"
    return FOLDER / f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.jsa"


def make(java: Path) -> Path:
    """Judges a history of one row in each table, and has Java archive the classes that this took."""
    from reports.expected import Expected
    from reports.rehearsal import rehearsing
    from reports.spark import spark_session

    archive = archive_for(java)
    archive.parent.mkdir(parents=True, exist_ok=True)
    made = archive.with_suffix(f".jsa{os.getpid()}")
    with spark_session(java_options=f"{_option('ArchiveClassesAtExit', made)} {_QUIET}") as spark:
        process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        with rehearsing(spark, Expected(foreign=True)) as rehearsal:
            rehearsal.prepare(lambda: False, passes=1)
    assert process.stdin is not None, "PySpark ends its Java by closing this"
    process.stdin.close()
    process.wait(ENDS_WITHIN_S)
    if not made.exists():
        raise SetupError(f"{java} made no archive of classes; the judge works without it.")
    for other in set(archive.parent.glob("*.jsa*")) - {made}:
        other.unlink(missing_ok=True)
    return made.rename(archive)


def _option(name: str, path: Path) -> str:
    """Spark splits options at blanks, unless they are quoted."""
    return f'"-XX:{name}={path}"'


def main() -> int:
    from reports.spark import require_java

    try:
        sys.stdout.write(f"{make(require_java())}\n")
    except Exception as error:  # Whatever failed, the judge works without an archive.
        sys.stdout.write(f"No archive of classes was made. {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
