"""Readers go first: what a process is given, what it keeps where that is not allowed, and that running regions are like that."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from running_cluster import RunningCluster

from actors import precedence
from regions.launcher import Role

GROUPED = precedence.GROUPS.exists()


def _in_a_process(script: str, *, user: int | None = None, names: str = "") -> list[str]:
    """Words that a script prints. It may use what is imported here, and `names`, and becomes `user` once it has imported that."""
    become = "" if user is None else f"os.setuid({user})\n"
    text = f"import os, threading\nfrom pathlib import Path\nfrom actors.precedence import go_evenly, go_first\n{names}\n{become}{script}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


@pytest.fixture(scope="module")
def _right() -> None:
    if _in_a_process("print(go_first(-5))") != ["True"]:
        pytest.skip("a niceness below 0 is not allowed to this user (CAP_SYS_NICE)")


needs_the_right = pytest.mark.usefixtures("_right")


@needs_the_right
def test_process_gets_a_session_and_a_niceness_that_its_threads_inherit() -> None:
    script = """
print(go_first(-7), os.getsid(0) == os.getpid(), os.getpriority(os.PRIO_PROCESS, 0))
thread = threading.Thread(target=lambda: print(os.getpriority(os.PRIO_PROCESS, 0)))
thread.start(); thread.join()
thread = threading.Thread(target=lambda: (go_evenly(), print(os.getpriority(os.PRIO_PROCESS, 0))))
thread.start(); thread.join()
print(os.getpriority(os.PRIO_PROCESS, 0))
"""
    assert _in_a_process(script) == ["True", "True", "-7", "-7", "0", "-7"]


@needs_the_right
@pytest.mark.skipif(not GROUPED, reason="this kernel does not share cores by session (no /proc/self/autogroup)")
def test_session_gets_the_niceness_too() -> None:
    assert _in_a_process("go_first(-7)\nprint(Path('/proc/self/autogroup').read_text())")[1:] == ["nice", "-7"]


@needs_the_right
@pytest.mark.skipif(not GROUPED, reason="this kernel does not share cores by session (no /proc/self/autogroup)")
def test_leader_of_a_group_leaves_the_session_that_it_shares_as_it_is() -> None:
    # In a session of the script's own: one that is as old as the machine's first process has no group, and that file is empty there.
    script = """
os.setsid()
if os.fork() == 0:
    os.setpgid(0, 0)
    print(go_first(-7), Path('/proc/self/autogroup').read_text().split()[-1], os.getpriority(os.PRIO_PROCESS, 0), flush=True)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""
    assert _in_a_process(script) == ["False", "0", "-7"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_go_first_says_so_and_goes_on_with_a_session_of_its_own() -> None:
    script = """
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
print(go_first(-7), os.getsid(0) == os.getpid(), os.getpriority(os.PRIO_PROCESS, 0))
go_evenly()
print("on")
"""
    told = _in_a_process(script, user=65534, names="import logging, sys")
    assert told[-4:] == ["False", "True", str(os.getpriority(os.PRIO_PROCESS, 0)), "on"]
    assert "this thread does not go first" in " ".join(told)


def test_clients_that_keep_a_pace_are_served_first_only_meanwhile() -> None:
    script = """
before = os.sched_getscheduler(0)
with first_served() as allowed:
    print(allowed, os.sched_getscheduler(0) == os.SCHED_RR)
print(os.sched_getscheduler(0) == before)
"""
    said = _in_a_process(script, names="from benchmarks.paced import first_served")
    if said[0] == "False":
        pytest.skip("real-time scheduling is not allowed to this user (CAP_SYS_NICE)")
    assert said == ["True", "True", "True"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_clients_that_may_not_go_first_keep_their_pace_and_it_is_told() -> None:
    script = "with first_served() as allowed:\n    print(allowed)\nsay_who_waits(print)"
    told = _in_a_process(script, user=65534, names="from benchmarks.paced import first_served, say_who_waits")
    assert told[:1] == ["False"] and "CAP_SYS_NICE" in " ".join(told)


@pytest.mark.cluster
@needs_the_right
def test_gateways_and_replicas_of_a_running_region_go_first_and_shards_do_not(cluster: RunningCluster) -> None:
    roles: dict[Role, int | None] = {"gateway": precedence.GATEWAY, "replica": precedence.REPLICA, "shard": None}
    for region in cluster.regions:
        pids = cluster.launcher.regions[region].host_pids()
        for role, niceness in roles.items():
            for pid in pids[role]:
                found = set()
                for thread in os.listdir(f"/proc/{pid}/task"):
                    with suppress(ProcessLookupError):  # it has ended since
                        found.add(os.getpriority(os.PRIO_PROCESS, int(thread)))
                assert found == {0} if niceness is None else niceness in found, (region, role, found)
                assert (os.getsid(pid) == pid) is (niceness is not None), (region, role)
                if GROUPED:
                    assert Path(f"/proc/{pid}/autogroup").read_text().split()[-1] == str(niceness or 0), (region, role)
