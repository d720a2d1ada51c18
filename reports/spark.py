"""The Spark session. It is local, with little memory and few log lines; a master from spark-submit takes precedence."""

import hashlib
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from reports import s3
from reports.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
KILLED_WITHIN_S = 10
"""Limits the wait for a killed Java process to disappear."""
DRIVER_MEMORY = "2g"
LARGE_DRIVER_MEMORY = "5g"
"""With it ten million operations are judged in 5.6 GiB, a tenth faster than with 3 GB."""
MIN_DRIVER_MEMORY = "3g"
"""Used on a machine with less than ROOMY_BYTES of memory."""
ROOMY_BYTES = 8 * 10**9
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
SMALL_HISTORY_BYTES = 8 * 1024 * 1024
"""The Parquet size of about a million rows. Smaller histories are judged with interpreted plans in one partition."""
LARGE_HISTORY_BYTES = 64 * 1024 * 1024

_COMPILERS = {
    # The verdict of one run is known before Java's second compiler pays off.
    "short": "-XX:TieredStopAtLevel=1",
    # A standby session gains by it, if it compiles only what is called very often.
    "long": "-XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=12000 "
    "-XX:Tier4CompileThreshold=300000 -XX:Tier4BackEdgeThreshold=200000",
}
_CALLED_OFTEN = {
    "org.apache.spark.sql.functions": "array coalesce col count count_if explode expr first floor "
    "format_string get_json_object greatest last least lit max max_by min min_by row_number struct sum when",
    "org.apache.spark.sql.expressions.Window": "orderBy partitionBy",
    "functions": "broadcast",
    "PythonUtils": "toSeq",
}
CLASS_ARCHIVES = Path(sys.prefix) / "crucible-classes"
"""The folder with the archive of classes, which ``reports.standby.class_archive`` makes."""


def require_java() -> Path:
    """Return the ``java`` that Spark will start. Raise SetupError with one sentence that says what to install."""
    home = os.environ.get("JAVA_HOME", "")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"JAVA_HOME ({home}) has no bin/java" if home else "there is no java on the PATH"
        raise SetupError(
            f"The report needs a Java {MIN_JAVA} runtime and {where}: install e.g. openjdk-17-jre-headless."
        )
    try:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        raise SetupError(f"The report needs a Java {MIN_JAVA} runtime and {java} does not start ({error}).") from error
    major = java_major(version)
    if major < MIN_JAVA:
        raise SetupError(
            f"The report needs Java {MIN_JAVA} or later and {java} is Java {major}: install a newer runtime."
        )
    return Path(java)


def java_major(version_text: str) -> int:
    """Return the major version in the output of ``java -version``, or 0 if there is none."""
    match = re.search(r'"(?:1\.)?(\d+)', version_text)
    return int(match[1]) if match else 0


def archive_for(java: Path) -> Path:
    """Return the path of the archive of Spark's classes for this ``java`` and this PySpark. It need not exist."""
    from pyspark import __file__ as home
    from pyspark import __version__ as version

    real = java.resolve()
    key = f"{real} {real.stat().st_mtime_ns} {home} {version}"
    return CLASS_ARCHIVES / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def archive_options(java: Path) -> str:
    """Return the options with which this ``java`` uses its archive, or an empty string if there is none."""
    archive = archive_for(java)
    return archive_option("SharedArchiveFile", archive) if archive.exists() else ""


def archive_option(name: str, archive: Path) -> str:
    """Return the options that name an archive to Java. Spark splits options at blanks, unless they are quoted.

    Without the last two Java would print a warning for each class that it cannot archive, or if the archive does not
    fit.
    """
    return f'"-XX:{name}={archive}" -Xlog:disable -Xlog:all=error:stderr'


@contextmanager
def spark_session(
    app: str = "crucible-report", history_bytes: int = 0, lives_long: bool = False, java_options: str = ""
) -> Iterator["SparkSession"]:
    """Start Spark (2 to 5 s), and stop it at the end. Raise SetupError without PySpark or Java.

    ``history_bytes`` is the size of the history that will be judged. It determines the memory and how far Java
    optimises, and so does ``lives_long``: whether the queries over a small history will run more than once.
    ``java_options`` replace those that use the archive of classes.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise SetupError(
            "The report needs PySpark, which is not installed: pip install 'crucible-kafka[suite]'."
        ) from None
    java = require_java()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if not _is_submitted():
        # PySpark starts its workers with the python3 on PATH, which may be another version. It refuses that.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    java_options = java_options or archive_options(java)
    with tempfile.TemporaryDirectory(prefix="crucible-spark-") as scratch:
        builder = SparkSession.builder.appName(app)
        for key, value in _settings(Path(scratch), history_bytes, lives_long, java_options).items():
            builder = builder.config(key, value)
        log = Path(scratch) / "spark.log"
        interrupted = signal.getsignal(signal.SIGINT)
        earlier = _descendants()
        try:
            with _stderr_of_children_to(log):
                session = builder.getOrCreate()
        except KeyboardInterrupt:
            _kill_java(earlier)
            raise
        except Exception as error:
            last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or [str(error)]
            raise SetupError(f"Spark did not start: {last[0]}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGINT, interrupted
            )  # PySpark's own handler calls Java, and fails within another call.
        _remember_names(session)
        logging.getLogger().addFilter(_is_no_interruption)
        logging.getLogger("py4j").setLevel(logging.CRITICAL)  # It raises what it logs.
        try:
            yield session
        except KeyboardInterrupt:
            # Java may be within a query, which it need not finish. PySpark's threads notice when it has ended.
            _silence(session)
            if session.sparkContext._gateway.proc is not None:  # type: ignore[union-attr]
                _kill_java(earlier)
            raise
        except BaseException:
            session.stop()
            raise
        session.stop()


def _descendants() -> set[psutil.Process]:
    return {*psutil.Process().children(recursive=True)}


def _kill_java(earlier: set[psutil.Process]) -> None:
    """Kill the Java process that was started for the session, or the shell that is about to become it.

    PySpark gives no handle on a process that is still starting. ``earlier`` are the descendants from before the start.
    """
    started = _descendants() - earlier
    for process in started:
        with suppress(psutil.NoSuchProcess):
            if "spark" in " ".join(process.cmdline()):
                process.kill()
    psutil.wait_procs(started, timeout=KILLED_WITHIN_S)


def _silence(session: "SparkSession") -> None:
    """Keep PySpark from printing a traceback for each connection that the end of Java closes.

    The server of accumulators prints one for its connection, and Py4J logs one for each object that is released.
    """
    server: Any = session.sparkContext._accumulatorServer
    server.handle_error = lambda _request, _client_address: None
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Return false for Py4J's log of an interrupted call, with its traceback. The user interrupted it and knows."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))


def _remember_names(session: "SparkSession") -> None:
    """Look up once what PySpark otherwise looks up in Java for each column, some thousand times for one verdict."""
    java: Any = session._jvm
    for name, members in _CALLED_OFTEN.items():
        java_class = getattr(java, name)
        setattr(java, name, java_class)
        for member in members.split():
            setattr(java_class, member, getattr(java_class, member))


@contextmanager
def sized_for(session: "SparkSession", history_bytes: int) -> Iterator[None]:
    """Use settings that suit a history of this size until the end of the block.

    The plans over a small history are interpreted, because compiling them would take longer than running them, and it
    stays in one partition. A large one gets partitions of about 32 MB.
    """
    if history_bytes < SMALL_HISTORY_BYTES:
        settings = {
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.files.maxPartitionBytes": str(SMALL_HISTORY_BYTES * 4),
            "spark.sql.files.openCostInBytes": "0",
            "spark.sql.files.minPartitionNum": "1",
        }
    else:
        partitions = max(os.cpu_count() or 2, history_bytes // (8 * 1024 * 1024))
        settings = {"spark.sql.shuffle.partitions": str(min(200, partitions)), "spark.sql.adaptive.enabled": "true"}
    before = {key: session.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        session.conf.set(key, value)
    try:
        yield
    except KeyboardInterrupt:
        before.clear()  # Java may have ended.
        raise
    finally:
        for key, old in before.items():
            if old is None:
                session.conf.unset(key)
            else:
                session.conf.set(key, old)


@contextmanager
def _stderr_of_children_to(log: Path) -> Iterator[None]:
    """Redirect stderr of the processes that are started inside the block to a file, for their whole life."""
    with log.open("wb") as file:
        stderr_copy = os.dup(2)
        try:
            os.dup2(file.fileno(), 2)
            yield
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)


def _large_driver_memory() -> str:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # A container may have less. Without a limit the file says "max", or is absent.
        there = min(there, int(_CONTAINER_LIMIT.read_text(encoding="utf-8")))
    return LARGE_DRIVER_MEMORY if there >= ROOMY_BYTES else MIN_DRIVER_MEMORY


def _is_submitted() -> bool:
    """Return whether spark-submit has started this process. It has chosen the master, the memory and the workers."""
    return "MASTER" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ


def _settings(scratch: Path, history_bytes: int, lives_long: bool, java_options: str) -> dict[str, str]:
    options = f"{java_options} -Dderby.system.home={scratch} -XX:ReservedCodeCacheSize=240m -XX:-UsePerfData "
    small = history_bytes < SMALL_HISTORY_BYTES
    compilers = _COMPILERS["long" if lives_long else "short"]
    options += f"-XX:+UseSerialGC {compilers}" if small else "-XX:+UseParallelGC"
    settings = {
        **s3.spark_settings(),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        # Most stages handle a few rows. Planning them again after each shuffle costs more than it saves, and so does
        # keeping plans as text for a user interface that is off.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.maxPlanStringLength": "500",
        "spark.sql.ui.retainedExecutions": "1",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.autoBroadcastJoinThreshold": str(4 * 1024 * 1024),
        "spark.sql.codegen.cache.maxEntries": "2000",
        "spark.cleaner.referenceTracking.cleanCheckpoints": "true",
    }
    if _is_submitted():
        return settings
    return settings | {
        "spark.master": "local[*]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": DRIVER_MEMORY if small else _large_driver_memory(),
        "spark.driver.extraJavaOptions": options,
        "spark.local.dir": str(scratch),
        # Each sort and each aggregate allocates a page of this size. Spark would choose 16 MB for a few rows. It takes
        # longer to compress cached data than to read it.
        **({"spark.buffer.pageSize": "1m", "spark.sql.inMemoryColumnarStorage.compressed": "false"} if small else {}),
    }
