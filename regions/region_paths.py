"""What a region keeps where on disk, and the report by which its supervisor tells the world how its children are."""

import hashlib
import json
import logging
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

log = logging.getLogger("laurel.region")

#: A log larger than this is rotated.
LOG_BYTES = 16_000_000

Containment = Literal["namespace", "subreaper"]


@dataclass(frozen=True, slots=True)
class RegionPaths:
    """Where a region keeps what. `data_dir` must be real and absolute: it is part of the marker."""

    data_dir: Path
    region: str

    @property
    def root(self) -> Path:
        return self.data_dir / self.region

    @property
    def marker(self) -> str:
        """Value of `LAUREL_RUN` in everything that this region starts."""
        return str(self.root)

    @property
    def report(self) -> Path:
        return self.root / "run" / "supervisor.json"

    @property
    def ray_tmp(self) -> Path:
        """Ray's sockets live below it and allow about 50 characters, which a data directory may exceed."""
        return Path("/tmp") / f"laurel-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]}"

    def node_tmp(self, node: int) -> Path:
        """Of one of the region's Ray nodes; 1 is the head."""
        return self.ray_tmp if node == 1 else self.ray_tmp / f"n{node}"

    def node_marker(self, node: int) -> str:
        """Value of `LAUREL_RUN` in everything of a further node; it counts for the region's `marker` too."""
        return f"{self.marker}/node-{node}"

    @property
    def outputs(self) -> list[str]:
        """Where the region's processes write their logs: it betrays those that have lost the marker."""
        return [str(self.root / "log"), str(self.ray_tmp)]

    def ledger(self, shard: str) -> Path:
        return self.root / "ledger" / shard.replace("/", "-")

    def log(self, name: str) -> Path:
        return self.root / "log" / f"{name}.log"

    def create(self) -> None:
        """Raises `OSError` where a directory cannot be made, or the temporary one is another user's."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("store", "ledger", "ray", "run", "log"):
            (self.root / name).mkdir(mode=0o700, exist_ok=True)
        self.ray_tmp.mkdir(mode=0o700, exist_ok=True)
        found = self.ray_tmp.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(f"{self.ray_tmp} is not a directory of this user; remove it")
        self.ray_tmp.chmod(0o700)


class ChildReport(msgspec.Struct, frozen=True, kw_only=True):
    """One child as `supervisor.json` shows it. Pids are those of the supervisor's own PID namespace."""

    #: starting, loading, ready, refusing, failing (misses probes), waiting (for its restart), stopped, external
    state: str
    pid: int | None = None
    started_at: str | None = None
    restarts: int = 0
    #: Why its last life ended.
    last_end: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of `supervisor.json`."""

    region: str
    pid: int
    started_at: str
    containment: Containment
    #: starting, running (all children ready), degraded, stopping, stopped
    state: str
    #: Restarts of children, all together.
    restarts: int
    ray_tmp: str
    children: dict[str, ChildReport]


def read_report(path: Path) -> Report | None:
    """The last report, None when there is none. It may be that of an earlier life: compare pids."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def write_report(path: Path, report: Report) -> None:
    """In one step: a reader sees this report or the one before it."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(msgspec.to_builtins(report), indent=1) + "\n", "utf-8")
    os.replace(temporary, path)


def rotate(path: Path) -> None:
    """Keep one older part. Its writers append, so they go on at the start of the emptied file."""
    try:
        if path.stat().st_size > LOG_BYTES:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)
    except OSError as error:
        if path.exists():
            log.warning("%s cannot be rotated: %s", path.name, error)


def prune_sessions(ray_tmp: Path) -> None:
    """Leave the last life's Ray session, whose logs may say why it ended; remove older ones."""
    sessions = sorted(path for path in ray_tmp.glob("session_2*") if path.is_dir() and not path.is_symlink())
    for path in sessions[:-1]:
        shutil.rmtree(path, ignore_errors=True)
