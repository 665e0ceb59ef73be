"""Who goes first where the cores of a machine are all busy: whoever answers readers, before whoever writes and folds.

A read needs some hundred microseconds of a core, a fold some ten milliseconds. Sharing evenly, the read waits for a whole turn of each
of the others. Linux shares cores between sessions first and between the threads of one session then (where it groups
by session: `/proc/sys/kernel/sched_autogroup_enabled`, and no control group does it instead), so niceness has to be given to both.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

log = logging.getLogger("laurel.actors")

#: Niceness of the processes that answer. Shards, stores and what works in the background have 0, like all else on the machine.
GATEWAY: Final = -18
REPLICA: Final = -8
#: Where Linux takes the niceness of a session; not there where it does not share cores by session.
GROUPS: Final = Path("/proc/self/autogroup")


def go_first(niceness: int) -> bool:
    """Give this process a session of its own and, with the calling thread and those that it starts, this niceness.

    Returns whether the system allows all of it, and logs what it does not: below 0 it needs `CAP_SYS_NICE`, or `ulimit -e` for the
    thread alone. A session of its own, which needs nothing, keeps a busy neighbour of the region from using up what this process is due.
    """
    allowed = True
    try:
        os.setsid()  # refused to a process that leads a group; the session that it is in is not its own then
        if GROUPS.exists():
            GROUPS.write_text(str(niceness))
    except OSError as error:
        log.info("the session of this process does not go first: %s", error)
        allowed = False
    try:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)  # on Linux: of the calling thread
    except OSError as error:
        log.info("this thread does not go first: %s", error)
        allowed = False
    return allowed


def go_evenly() -> None:
    """For threads of background work, which inherit the niceness of whoever starts them."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
