"""What a figure or a report is worth nothing without: the commit that ran, and the machine; nothing that names the machine."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def commit() -> str:
    """The checkout's commit, with `+changes` where files differ from it; outside of a checkout the version that is installed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(_ROOT), *words], capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return _version("laurel-leaderboards")


def machine() -> dict[str, str]:
    """Cores that this process may use, memory, kernel, and the versions of Python and Ray."""
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cores": str(len(affinity(0)) if affinity is not None else os.cpu_count() or 1),
        "memory_mb": str(memory_mb),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "ray": _version("ray"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
