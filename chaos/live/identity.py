"""The manifest's description of code and machine."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import psutil

from chaos.live import toxiproxy_server

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kio", "uvloop", "locust", "pyspark", "pyarrow", "toxiproxy-python")


def of_code_and_machine() -> dict[str, Any]:
    """Return the manifest's fields about the code that ran, and the machine."""
    commit, dirty = _commit()
    return {"commit": commit, "dirty": dirty, "versions": _versions(), "machine": _machine()}


def _commit() -> tuple[str, bool]:
    """Return the hash, and whether anything was changed since. The hash is empty outside a repository."""
    try:
        return _git("rev-parse", "HEAD"), bool(_git("status", "--porcelain"))
    except (OSError, subprocess.SubprocessError):
        return "", False


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "toxiproxy": toxiproxy_server.VERSION}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def _machine() -> dict[str, str]:
    return {
        "cpu": _cpu_model(),
        "cores": str(os.cpu_count()),
        "memory_bytes": str(psutil.virtual_memory().total),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_average": " ".join(f"{each:.2f}" for each in os.getloadavg()),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor()
    return platform.processor() or "unknown"
