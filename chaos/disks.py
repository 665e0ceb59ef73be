"""A small disk of its own for one region's store, which can be full: a tmpfs whose size is cut down to what it holds.

The store's next write then finds no space, as on a disk that others have filled. Needs root. `close` unmounts.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_ROOMY, _SOURCE = "1g", "laurel-chaos"
_PAGE = os.sysconf("SC_PAGESIZE")


class DiskError(Exception):
    """A mount command failed; the text is what it said."""

    code = "disk"
    definite = True


def unavailable() -> str:
    """Why a disk cannot be made and filled here, "" where it can. Tries it once."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    if shutil.which("mount") is None or shutil.which("umount") is None:
        return "mount is not installed"
    place = Path(tempfile.mkdtemp(prefix="laurel-disk-"))
    try:
        disk = SmallDisk(place)
        disk.close()
    except DiskError as error:
        return f"a small disk cannot be mounted here: {error}"
    finally:
        place.rmdir()
    return ""


class SmallDisk:
    """Mounted at `place`, an empty directory, from its making to `close`; roomy unless `fill` was called."""

    def __init__(self, place: Path) -> None:
        """Raises DiskError."""
        self._place = place
        self._mounted = False
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={_ROOMY},mode=0700", _SOURCE, str(place))
        self._mounted = True

    def fill(self) -> None:
        """From now on not one page more fits. A writer may win the race for the last one: its next write fails."""
        while True:
            used = _used(self._place)
            try:
                _run("mount", "-o", f"remount,size={max(used, _PAGE)}", str(self._place))
            except DiskError:  # it grew meanwhile, and a size below what it holds is refused
                if _used(self._place) == used:
                    raise
            else:
                return

    def free(self) -> None:
        """Roomy again. Idempotent, and nothing after `close`."""
        if not self._mounted:
            return
        _run("mount", "-o", f"remount,size={_ROOMY}", str(self._place))

    def close(self) -> None:
        """Unmount; what was on it is gone. Idempotent."""
        if self._mounted:
            try:
                _run("umount", str(self._place))
            except DiskError:  # something still looks at it
                _run("umount", "--lazy", str(self._place))
            self._mounted = False


def unmount_below(directory: Path) -> None:
    """Unmount every small disk in `directory`. Raises DiskError."""
    for line in Path("/proc/self/mounts").read_text("utf-8").splitlines():
        source, place = line.split(" ")[:2]
        if source == _SOURCE and Path(place).is_relative_to(directory):
            _run("umount", "--lazy", place)


def _used(place: Path) -> int:
    facts = os.statvfs(place)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    if done.returncode != 0:
        raise DiskError(f"`{' '.join(command[:1])}` said: {done.stderr.strip() or done.returncode}")
