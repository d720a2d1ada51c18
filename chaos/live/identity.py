"""Which code ran on which machine, for the manifest."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import psutil

from chaos.live import toxiproxy_server

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("kio", "uvloop", "locust", "pyspark", "pyarrow", "toxiproxy-python")


def commit() -> tuple[str, bool]:
    """(hash, was anything changed since); an empty hash outside a repository."""
    try:
        found = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
        changed = subprocess.run(
            ["git", "-C", str(ROOT), "status", "--porcelain"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return "", False
    return found.stdout.strip(), bool(changed.stdout.strip())


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "toxiproxy": toxiproxy_server.VERSION}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def machine() -> dict[str, str]:
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
