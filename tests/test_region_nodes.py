"""A region of two Ray nodes, with two read replicas and two gateways: spread over both, and a dead node takes nothing along."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import yaml
from load import Load
from running_cluster import RunningCluster

from config.loading import load_cluster
from config.models import ClusterConfig, ConfigError
from regions import node_command, process_tree, scratch
from regions.launcher import StartError
from regions.live_table import RegionView, changes, parts
from regions.node import LOOK_S
from regions.pooled_backend import HeardElsewhere
from regions.ray_settings import HOST_LABEL, NUMBER_LABEL, spread
from regions.specs import gateway_specs, make_keys

pytest.importorskip("ray")

REGION, SECOND = "eu-west", "second"
SHARDS = ["eu-west/0", "eu-west/1"]


class Boards(NamedTuple):
    """A board that adds up deltas of 1, one of best scores, and one that adds up and has a slice in both shards."""

    total: str
    best: str
    spread: str


class TwoNodes(RunningCluster):
    """One region whose two gateways count as two regions for whoever speaks to them."""

    def __init__(self, data_dir: Path) -> None:
        ports = scratch.free_ports()
        region = {
            "port": next(ports),
            "store": {"port": next(ports)},
            "link": {"host": "127.0.0.1", "port": next(ports)},
            "nodes": 2,
            "replicas": 2,
            "extra_gateways": [{"port": next(ports)}],
        }
        super().__init__(data_dir, changes={"regions": {REGION: region}, "shards": {name: {"home": REGION} for name in SHARDS}})
        self.process = self.launcher.regions[REGION]

    def speak_to_both(self) -> None:
        """From now on the second gateway is a region of its own in `regions` and `urls`."""
        extra = self.launcher.config.regions[REGION].gateways[1]
        self.urls[SECOND] = f"http://{extra[0]}:{extra[1]}"
        self.regions = [REGION, SECOND]

    def status(self, gateway: str = REGION) -> dict[str, Any]:
        """What one gateway says; {} while it does not answer."""
        try:
            with self.http(gateway, "operator") as http:
                return dict(http.get("/v1/status").json())
        except (OSError, ValueError):
            return {}

    def actors(self, node: int) -> list[str]:
        """Names of the actors on a node."""
        return list(next((line["actors"] for line in self.status().get("nodes", ()) if line["node"] == node), ()))

    def well(self) -> bool:
        """Everything answers, and the region has all its nodes."""
        report = self.process.report()
        if report is None or report.state != "running":
            return False
        for gateway in self.regions:
            with self.http(gateway, None) as http:
                if http.get("/readyz").status_code != 200:
                    return False
            status = self.status(gateway)
            lines = [*status["replicas"], *status["gateways"]]
            if not all(line["answers"] and line.get("serving", True) and not line.get("left_out") for line in lines):
                return False
        return True


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """Started once; when it has stopped, no process of it is left."""
    running = TwoNodes(tmp_path_factory.mktemp("nodes"))
    paths = running.process.paths
    try:
        with running:
            yield running
    finally:
        running.launcher.stop_all()
        assert process_tree.processes_marked(paths.marker, outputs=paths.outputs) == []


@pytest.fixture(scope="module")
def boards(region: TwoNodes) -> Boards:
    """Made once; then both gateways are spoken to."""
    made = Boards(
        region.fresh_board("cumulative", visibility="public"),
        region.fresh_board("best_score", visibility="public"),
        region.fresh_board("cumulative", visibility="public", shards=2),
    )
    region.speak_to_both()
    return made


@pytest.mark.cluster
def test_actors_are_spread_over_the_nodes_as_they_should(region: TwoNodes, boards: Boards) -> None:
    region.until(region.well, "everything answers")
    status = region.status()
    assert {line["node"]: sorted(line["actors"]) for line in status["nodes"]} == {
        1: ["gateway", "replica", "shard eu-west/1"],
        2: ["gateway 2", "replica 2", "shard eu-west/0"],
    }
    assert region.status(SECOND)["gateway"] == "gateway 2"
    pids = region.process.host_pids()
    assert {role: len(pids[role]) for role in ("node", "raylet", "gcs", "replica", "gateway", "shard")} == {
        "node": 1, "raylet": 2, "gcs": 1, "replica": 2, "gateway": 2, "shard": 2
    }  # fmt: skip
    second = {process.pid for process in process_tree.descendants(pids["node"][0])}
    assert {role: len(second & {*pids[role]}) for role in ("raylet", "gcs", "replica", "gateway", "shard")} == {
        "raylet": 1, "gcs": 0, "replica": 1, "gateway": 1, "shard": 1
    }  # fmt: skip


@pytest.mark.cluster
def test_only_the_first_gateway_is_an_acceptor(region: TwoNodes, boards: Boards) -> None:
    """The second one serves the public address alone; what the first hears of the authority it knows from it."""
    settings = region.launcher.config.regions[REGION]
    listening = {port for _, port in settings.gateways} | {settings.link.port}
    owners = {port: _listener(port) for port in listening}
    pids = region.process.host_pids()["gateway"]
    assert owners[settings.link.port] == owners[settings.port] == pids[0]
    assert owners[settings.gateways[1][1]] == pids[1]
    assert [region.status(SECOND)["shards"][shard]["known_owner"] for shard in SHARDS] == [REGION, REGION]


@pytest.mark.cluster
def test_a_node_that_dies_takes_no_acknowledged_event_and_no_answer_along(
    region: TwoNodes, boards: Boards, record_property: Callable[[str, object], None]
) -> None:
    """1. Load through both gateways. 2. SIGKILL for the raylet of node 2, which has a shard, a replica and a gateway.
    3. Reads go on at the first gateway all the time, and never backwards; writes come back. 4. The node is back, and the second
    gateway, and the replica goes back to its node. 5. What was acknowledged is there, once."""
    region.until(region.well, "everything answers")
    before = region.status()["shards"]
    with Load(region, *boards, f"node-{os.getpid()}") as load:
        book, watchers = load.book, load.watchers

        def newest(since: float = 0.0) -> list[int]:
            return [min(watcher.newest(board, since) for watcher in watchers.values()) for board in watchers[REGION].boards]

        region.until(lambda: len(book.sent_and_acknowledged(0.0)) == 2, "both game servers write")
        region.until(lambda: min(newest()) > 0, "both gateways are read")
        node = region.process.host_pids()["node"][0]
        old = process_tree.descendants(node)
        (raylet,) = [process.pid for process in old if process_tree.program_name(process.pid) == "raylet"]
        killed = time.monotonic()
        os.kill(raylet, signal.SIGKILL)
        region.until(lambda: not any(process_tree.alive(process) for process in old), "all of the node is gone")
        gone = time.monotonic()
        region.until(lambda: len(book.sent_and_acknowledged(killed)) == 2, "writes are acknowledged again")
        region.until(lambda: watchers[SECOND].newest(boards.total, gone) > 0, "the second gateway answers again")
        region.until(lambda: region.process.host_pids()["node"] not in ([], [node]) and region.well(), "the node is back, and all is well")
        back = time.monotonic()
        region.until(lambda: "replica 2" in region.actors(2) and region.well(), "the replica is back on its node")
        later = time.monotonic()
        region.until(lambda: len(book.sent_and_acknowledged(later)) == 2, "both game servers write")
        shown = newest()
        region.until(lambda: all(a > b for a, b in zip(newest(later), shown, strict=True)), "newer generations are read at both")
        load.finish_writing()
        seen = {
            "all of the node gone after s": gone - killed,
            "write pause s": book.pause_s(killed),
            "read gap at the first gateway s": watchers[REGION].gap_s(killed, later),
            "read gap at the second gateway s": watchers[SECOND].gap_s(killed, later),
            "all well again after s": back - killed,
            "replica back on its node after s": later - killed,
            "events": len(book.events),
        }
    for name, value in seen.items():
        record_property(name, value)
    print({name: round(value, 2) for name, value in seen.items()})
    assert book.failures == []
    assert [watcher.backwards for watcher in watchers.values()] == [[], []]
    assert seen["read gap at the first gateway s"] < seen["read gap at the second gateway s"], "the first one did not need the dead node"
    after = region.status()["shards"]
    assert {name: after[name]["epoch"] - before[name]["epoch"] for name in SHARDS} == {"eu-west/0": 1, "eu-west/1": 0}
    report = region.process.report()
    assert report is not None
    assert {name: child.restarts for name, child in report.children.items()} == {"store": 0, "driver": 0, "node-2": 1}
    wanted = (dict(Counter(book.counted.values())), book.best, dict(Counter(book.spread.values())))
    for board, told in zip(boards, wanted, strict=True):
        for gateway in region.regions:
            reader = region.client(gateway, scope="reader")
            pages = [reader.top(board, 1000, at_least=at_least) for at_least in book.last[board].values()]
            page = max(pages, key=lambda page: int(page.generation[1:]))
            assert {entry.player_id: int(entry.value) for entry in page.entries} == told


@pytest.mark.cluster
def test_a_replica_that_stands_still_is_left_out_and_comes_back(region: TwoNodes, boards: Boards) -> None:
    """1. SIGSTOP for one replica. 2. Questions are answered by the other: none of twenty waits for it but the first two.
    3. It goes on, or was replaced, and is asked again."""
    region.until(region.well, "everything answers")
    stopped = region.process.host_pids()["replica"][0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        slow = 0
        with region.http(REGION, None) as http:
            for _ in range(20):
                began = time.monotonic()
                assert http.get(f"/v1/boards/{boards.total}/top?limit=3").status_code == 200
                slow += time.monotonic() - began > 1.0
        assert slow <= 2
    finally:
        if process_tree.program_name(stopped):
            os.kill(stopped, signal.SIGCONT)
    region.until(region.well, "it is asked again")


def written(tmp_path: Path, **region: Any) -> Path:
    """The shipped cluster file with other words about its first region."""
    raw = yaml.safe_load(scratch.CLUSTER_FILE.read_text())
    raw["regions"][REGION] |= region
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


#: A region that nodes on other machines may join.
ELSEWHERE = {"nodes": 3, "store": {"url": "redis://10.0.0.9:6379/0"}, "head": {"host": "10.0.0.1", "port": 7500}}


@pytest.mark.parametrize(
    ("region", "sentence"),
    [
        ({"replicas": 0}, "regions.eu-west.replicas must be a whole number from 1 to 16, not 0."),
        ({"nodes": 17}, "regions.eu-west.nodes must be a whole number from 1 to 16, not 17."),
        ({"extra_gateways": [{"port": 7411}]}, "extra_gateways.0.port must be an address of its own: 127.0.0.1:7411 is already"),
        ({"extra_gateways": [{"port": 7432}]}, "regions.us-east.link.port must be an address of its own: 127.0.0.1:7432 is already"),
        ({"extra_gateways": [{"prt": 1}]}, "regions.eu-west.extra_gateways.0."),
        ({"extra_gateways": 2}, "extra_gateways must be a list of up to 15 mappings with `port`"),
        ({"gateways": 2}, "regions.eu-west.gateways is no known key (did you mean `extra_gateways`?)"),
        ({**ELSEWHERE, "nodes": 1}, "regions.eu-west.head is for nodes on other machines, so `nodes` must be 2 or more"),
        ({**ELSEWHERE, "head": {"host": "localhost", "port": 1}}, "regions.eu-west.head.host must be an address that other machines reach"),
        ({**ELSEWHERE, "store": {"port": 7421}}, "regions.eu-west.store must be a `url` that other machines reach"),
        ({**ELSEWHERE, "head": {"host": "10.0.0.9", "port": 6379}}, "regions.eu-west.head.port must be an address of its own"),
    ],
)
def test_a_region_that_cannot_be_is_refused_by_name(tmp_path: Path, region: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_cluster(written(tmp_path, **region))
    assert sentence in str(error.value)


def test_a_cluster_on_other_ports_has_all_its_gateways_and_its_head_there(tmp_path: Path) -> None:
    config = load_cluster(written(tmp_path, **ELSEWHERE, extra_gateways=[{"port": 7499}, {"host": "10.0.0.2", "port": 7499}]))
    moved = config.relocate(iter(range(30_000, 30_100))).regions[REGION]
    assert moved.gateways == [("127.0.0.1", 30_000), ("127.0.0.1", 30_002), ("10.0.0.2", 30_003)]
    assert moved.head is not None
    assert (moved.link.port, moved.head.port, moved.store) == (30_001, 30_004, config.regions[REGION].store)


def test_each_gateway_of_a_region_knows_the_others_and_one_alone_is_first(tmp_path: Path) -> None:
    config = load_cluster(written(tmp_path, nodes=2, extra_gateways=[{"port": 7499}]))
    make_keys(tmp_path, list(config.regions))
    specs = gateway_specs(config, REGION, tmp_path)
    assert [(spec.name, spec.port, spec.first) for spec in specs] == [("gateway", 7411, True), ("gateway 2", 7499, False)]
    assert {tuple(spec.gateways.items()) for spec in specs} == {
        (("gateway", "http://127.0.0.1:7411"), ("gateway 2", "http://127.0.0.1:7499"))
    }  # fmt: skip


@pytest.mark.parametrize(
    ("number", "region", "sentence"),
    [
        (2, {}, "regions.eu-west.head is missing: it says where nodes on other machines find this region."),
        (4, ELSEWHERE, "regions.eu-west.nodes is 3, so further nodes have the numbers 2 to 3, not 4."),
        (1, ELSEWHERE, "the numbers 2 to 3, not 1."),
        (2, ELSEWHERE, "keys has no secret: copy the keys directory of the cluster there."),
    ],
)
def test_a_machine_that_may_not_join_is_told_why(tmp_path: Path, number: int, region: dict[str, Any], sentence: str) -> None:
    config = load_cluster(written(tmp_path, **region))
    with pytest.raises((ConfigError, StartError)) as error:
        node_command.join(config, REGION, number=number, data_dir=tmp_path, head="", host="10.0.0.2", stop=threading.Event())
    assert sentence in str(error.value)


def test_the_table_of_a_region_of_several_nodes_shows_each_part_and_its_changes() -> None:
    status = {
        "nodes": [{"node": 1, "actors": ["gateway", "replica"]}, {"node": 2, "actors": ["replica 2"]}],
        "gateways": [{"gateway": "gateway", "node": 1, "url": "http://127.0.0.1:1", "answers": True}],
        "replicas": [
            {"replica": "replica", "node": 1, "answers": True, "serving": True, "applied": {"a": 4, "b": 3}, "generations": {"x": 9}},
            {"replica": "replica 2", "node": 2, "answers": True, "serving": False, "applied": {"a": 1}, "generations": {}},
        ],
    }
    before = RegionView(name="eu", url="u", state="running", ready=True, status=status)
    rows = [(row["part"], row["node"], row["state"], row.get("applied"), row.get("newest")) for row in parts([before])]
    assert rows == [
        ("node 1", 1, "2 actors", None, None),
        ("node 2", 2, "1 actors", None, None),
        ("gateway", 1, "serving", None, None),
        ("replica", 1, "serving", 7, "x s9"),
        ("replica 2", 2, "reading", 1, ""),
    ]
    died = {
        **status,
        "nodes": [{"node": 1, "actors": ["gateway", "replica", "replica 2"]}, {"node": 2, "actors": []}],
        "replicas": [status["replicas"][0], {**status["replicas"][1], "node": 1, "serving": True}],
    }
    after = RegionView(name="eu", url="u", state="running", ready=True, status=died)
    assert changes([before], [after]) == ["eu: node 2 runs nothing", "eu: replica 2 is serving on node 1"]
    plain = {kind: lines[:1] for kind, lines in status.items()}
    assert parts([RegionView(name="eu", url="u", state="running", status=plain)]) == []


def test_a_gateway_without_an_acceptor_counts_silence_on_from_what_the_first_one_heard() -> None:
    """1. The first gateway heard nothing for 700 ms. 2. It is gone: silence grows. 3. It is back, and has heard progress."""

    class Handles:
        said: ClassVar[list[dict[str, int] | None]] = [{"a": 0, "b": 700}, None, {"a": 0, "b": 0}]

        async def silence(self, name: str) -> dict[str, int]:
            assert name == "gateway"
            said = self.said.pop(0) if self.said else None
            if said is None:
                raise TimeoutError
            return said

    async def story() -> None:
        now = [10_000]
        pauses = asyncio.Semaphore(0)
        looked: asyncio.Queue[None] = asyncio.Queue()

        async def pause(_: float) -> None:
            looked.put_nowait(None)
            await pauses.acquire()

        handles: Any = Handles()
        heard = HeardElsewhere(handles, ["a", "b"], now_ms=lambda: now[0], pause=pause)
        now[0] += 1000
        following = asyncio.create_task(heard.follow())
        await looked.get()
        assert (heard.silent_ms("a"), heard.silent_ms("b")) == (0, 700)
        now[0] += 2000
        pauses.release()
        await looked.get()
        assert (heard.silent_ms("a"), heard.silent_ms("b")) == (2000, 2700)
        pauses.release()
        await looked.get()
        assert (heard.silent_ms("a"), heard.silent_ms("b")) == (0, 0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(story())


def test_where_actors_should_run() -> None:
    """On one machine by number; on several a gateway is where its address is, the first one at the head."""
    addresses = {"port": 1, "store": {"url": "redis://10.0.0.9:6379/0"}, "link": {"host": "10.0.0.1", "port": 2}, "host": "10.0.0.1"}
    raw = {
        "name": "c",
        "regions": {
            "eu": {**addresses, "nodes": 3, "head": {"host": "10.0.0.1", "port": 3}, "extra_gateways": [{"host": "10.0.0.2", "port": 1}]}
        },
        "shards": {"eu/0": {"home": "eu"}},
    }
    settings = ClusterConfig.model_validate(raw).regions["eu"]
    wishes = dict(spread(settings, ["s0", "s1", "s2", "s3"], ["r1", "r2"], ["g1", "g2"]))
    assert {name: wish.wanted for name, wish in wishes.items() if not wish.only} == {
        "s0": {NUMBER_LABEL: "3"}, "s1": {NUMBER_LABEL: "2"}, "s2": {NUMBER_LABEL: "1"}, "s3": {NUMBER_LABEL: "3"},
        "r1": {NUMBER_LABEL: "1"}, "r2": {NUMBER_LABEL: "2"},
    }  # fmt: skip
    assert {name: wish.wanted for name, wish in wishes.items() if wish.only} == {
        "g1": {NUMBER_LABEL: "1"}, "g2": {HOST_LABEL: "10.0.0.2"}
    }  # fmt: skip
    assert LOOK_S < 0.1, "a worker that outlives its raylet writes beside the one that Ray starts elsewhere"


def _listener(port: int) -> int:
    """Pid of the process that listens there, 0 if none does."""
    wanted = f"0100007F:{port:04X}"
    inodes = {
        f"socket:[{fields[9]}]"
        for fields in (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        if fields[1] == wanted and fields[3] == "0A"
    }
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(path) in inodes:
                return int(path.parts[2])
        except OSError:
            continue
    return 0
