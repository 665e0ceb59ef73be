"""Fencing between real processes: a deposed authority behind a cut link, a doubled actor, a half-done seal, a store put back."""

import asyncio
import contextlib
import functools
import itertools
import os
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import pytest
from running_cluster import SHARD, RunningCluster

from actors.shard import ShardActor
from boards.model import Submission
from config.loading import load_cluster
from journal.ports import Granted, JournalStatus, Seal
from journal.records import BoardCreated, Entry, Scored, open_entry
from journal.redis_journal import RedisJournal, open_client
from ledger.lmdb_ledger import LmdbLedger
from regions.faults import Faults
from regions.links import HttpLinks
from regions.specs import link_spec, shard_specs

pytestmark = pytest.mark.cluster

T = TypeVar("T")


@pytest.fixture
def settled(cluster: RunningCluster) -> Iterator[RunningCluster]:
    """The cluster, at home in eu-west, and so again afterwards, whatever the test has done to it."""
    cluster.settled()
    try:
        yield cluster
    finally:
        cluster.settled()


def on_store(cluster: RunningCluster, region: str, work: Callable[[RedisJournal], Coroutine[Any, Any, T]]) -> T:
    """Do something with a region's journal of the shard, directly at its store."""

    async def run() -> T:
        journal = RedisJournal(load_cluster(cluster.config_path).regions[region].store.redis_url, SHARD, region=region)
        try:
            return await work(journal)
        finally:
            await journal.close()

    return asyncio.run(run())


def status(cluster: RunningCluster, region: str) -> JournalStatus:
    return on_store(cluster, region, lambda journal: journal.status())


async def all_entries(journal: RedisJournal) -> list[Entry]:
    found: list[Entry] = []
    while part := await journal.read(len(found) + 1):
        found += part
    return found


def committed_log(cluster: RunningCluster, region: str) -> list[tuple[int, int, str]]:
    """(epoch, offset, digest) of everything committed at a region's store."""
    entries = on_store(cluster, region, all_entries)
    return [(entry.epoch, entry.offset, entry.digest) for entry in entries[: status(cluster, region).committed]]


def scored(entries: list[Entry], number: int) -> list[str]:
    """Ids of the events in these entries that are for one board."""
    return [record.event_id for entry in entries for record in open_entry(entry) if isinstance(record, Scored) and record.board == number]


def number_of(cluster: RunningCluster, board: str) -> int:
    """The number by which a journal calls a board."""
    records = itertools.chain.from_iterable(map(open_entry, on_store(cluster, "eu-west", all_entries)))
    return next(record.number for record in records if isinstance(record, BoardCreated) and record.board_id == board)


def orphaned(cluster: RunningCluster, region: str) -> list[Entry]:
    return [entry for batch in on_store(cluster, region, lambda journal: journal.orphans()) for entry in batch.entries]


def operate(cluster: RunningCluster, region: str, path: str, **body: Any) -> httpx.Response:
    with cluster.http(region, "operator") as http:
        return http.post(f"/v1/admin/{path}", json=body, timeout=30)


def link(cluster: RunningCluster, region: str, peer: str, mode: str) -> None:
    assert operate(cluster, region, "links", peer=peer, direction="both", mode=mode).status_code == 200


def delta(event_id: str, player_id: str = "ann", amount: int = 1) -> dict[str, Any]:
    return {"event_id": event_id, "player_id": player_id, "delta": amount}


def acknowledged(response: httpx.Response) -> bool:
    return response.status_code == 200 and all(result.get("acked") == "quorum" for result in response.json()["results"])


def tops(cluster: RunningCluster, board: str, after: httpx.Response) -> list[bytes]:
    """The newest page in every region, once each region includes `after`."""

    def page(region: str) -> bytes:
        answer = cluster.get(region, f"/v1/boards/{board}/top", after=after)
        return answer.content if answer.is_success else b""

    return [cluster.until(functools.partial(page, region), f"{region} has the generation") for region in cluster.regions]


class Writers:
    """Posts events of 1 point through given regions until told to stop, each again with the same id until it is acknowledged."""

    def __init__(self, cluster: RunningCluster, board: str, *regions: str) -> None:
        self.acked: dict[str, list[str]] = {region: [] for region in regions}
        self.odd: list[str] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(cluster, board, region), name=region, daemon=True) for region in regions
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)
        self.odd += [f"{thread.name} has no answer" for thread in self._threads if thread.is_alive()]

    @property
    def total(self) -> int:
        return sum(map(len, self.acked.values()))

    def _write(self, cluster: RunningCluster, board: str, region: str) -> None:
        with cluster.http(region) as http:
            while not self._over.is_set():
                event_id = f"{region}-{len(self.acked[region])}"
                while True:
                    try:
                        reply = http.post(f"/v1/boards/{board}/events", json=delta(event_id))
                    except httpx.HTTPError:
                        continue
                    if acknowledged(reply):
                        self.acked[region].append(event_id)
                        break
                    if reply.status_code != 503:
                        self.odd.append(reply.text)
                        break


def test_a_deposed_authority_behind_a_cut_link_acknowledges_nothing_and_loses_nothing_committed(settled: RunningCluster) -> None:
    """1. eu-west is cut off, alive. 2. Its clients get no acknowledgement. 3. us-east takes over and goes on. 4. The link heals:
    eu-west is fenced, keeps what it alone had as orphans, and follows. 5. All is sent again: each event counts once."""
    cluster, board = settled, settled.fresh_board("cumulative")
    before = [cluster.post(region, board, delta(f"before-{region}")) for region in cluster.regions]
    assert all(map(acknowledged, before))
    committed_before = committed_log(cluster, "eu-west")
    old = status(cluster, "eu-west").fence

    for peer in ("us-east", "ap-south"):
        link(cluster, "eu-west", peer, "drop")
    lost = [f"cut-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(lost)) as pool:
        cut = [pool.submit(cluster.post, "eu-west", board, delta(event_id), timeout=30) for event_id in lost]
        cluster.until(
            lambda: status(cluster, "eu-west").tail.offset > len(committed_before), "the cut authority has written to its own store"
        )
        moved = operate(cluster, "us-east", "failover", shard=SHARD, to="us-east", force=True)
        assert moved.status_code == 200, moved.text
        meanwhile = [cluster.post(region, board, delta(f"meanwhile-{region}")) for region in ("us-east", "ap-south")]
        assert all(map(acknowledged, meanwhile)), [reply.text for reply in meanwhile]
        assert cluster.get("eu-west", f"/v1/boards/{board}/top").status_code == 200  # dated reads go on
        replies = [reply.result() for reply in cut]
    assert {reply.status_code for reply in replies} == {503}
    assert not any("acked" in result for reply in replies for result in reply.json().get("results", []))
    assert status(cluster, "eu-west").fence == old

    for peer in ("us-east", "ap-south"):
        link(cluster, "eu-west", peer, "clear")
    cluster.until(
        lambda: cluster.shard("eu-west").get("role") == "follower" and cluster.shard("eu-west").get("owner") == "us-east",
        "eu-west steps down",
    )
    again = [cluster.post("eu-west", board, delta(event_id)) for event_id in lost]
    assert [reply.json()["results"][0]["outcome"] for reply in again] == ["applied"] * len(lost)
    assert len({*tops(cluster, board, again[-1])}) == 1
    assert cluster.get("ap-south", f"/v1/boards/{board}/players/ann").json()["entries"][0]["value"] == str(3 + 2 + len(lost))

    cluster.until(
        lambda: committed_log(cluster, "eu-west") == committed_log(cluster, "us-east") == committed_log(cluster, "ap-south"), "equal logs"
    )
    assert committed_log(cluster, "us-east")[: len(committed_before)] == committed_before
    held, number = {*committed_log(cluster, "us-east")}, number_of(cluster, board)
    orphans = [entry for entry in orphaned(cluster, "eu-west") if (entry.epoch, entry.offset, entry.digest) not in held]
    assert {entry.epoch for entry in orphans} >= {old}
    kept = scored([entry for entry in orphans if entry.epoch == old], number)
    assert set(kept) <= set(lost)
    assert kept, "what the cut authority had written is not among the orphans"
    once = scored(on_store(cluster, "us-east", all_entries), number)
    assert sorted(once) == sorted([*(f"before-{r}" for r in cluster.regions), "meanwhile-us-east", "meanwhile-ap-south", *lost])


class Zombie:
    """A second actor of a region's shard in this process, on a loop of its own: same store, same links, another ledger."""

    def __init__(self, cluster: RunningCluster, region: str, ledger: Path) -> None:
        config = load_cluster(cluster.config_path)
        self._spec = msgspec.structs.replace(shard_specs(config, region, cluster.data_dir)[0], ledger_path=str(ledger))
        self._links = link_spec(config, region, cluster.data_dir)
        self.ended: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="zombie")

    def __enter__(self) -> "Zombie":
        self._thread.start()
        self.actor = self.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open(self) -> ShardActor:
        self._client = open_client(self._spec.store_url)
        faults = Faults(self._client)
        actor = ShardActor(
            self._spec,
            journal=RedisJournal(self._client, self._spec.shard, region=self._spec.region),
            links=HttpLinks(self._spec.region, self._links.peers, self._links.token, faults),
            ledger=LmdbLedger(self._spec.ledger_path),
            exit_process=self.ended.append,
        )
        actor.background(faults.run())
        actor.start()
        return actor

    async def _close(self) -> None:
        await self.actor.close()
        await self._client.aclose()

    async def state(self) -> dict[str, Any]:
        return self.actor.status()


def test_of_two_actors_of_one_region_one_serves_in_the_end_and_every_acknowledged_event_counts_once(
    settled: RunningCluster, tmp_path: Path
) -> None:
    """1. Writers in all regions. 2. A second actor of eu-west takes the epoch and acknowledges events of its own. 3. The first one is
    fenced, exits, is made anew and takes the epoch back. 4. The second one is fenced in its turn. 5. Everything is there once."""
    cluster, board = settled, settled.fresh_board("cumulative")
    first = status(cluster, "eu-west").fence
    own = [Submission(f"zombie-{number}", "ann", 1, number, number, bytes(16)) for number in range(5)]
    with Writers(cluster, board, *cluster.regions) as writers:
        cluster.until(lambda: writers.total > 20, "writes flow")
        with Zombie(cluster, "eu-west", tmp_path / "ledger") as zombie:
            cluster.until(lambda: zombie.call(zombie.state())["serving"], "the second actor takes the epoch")
            with contextlib.suppress(Exception):  # the first one may have taken it back already
                zombie.call(zombie.actor.submit(board, own, "test"))
            cluster.until(lambda: zombie.ended, "the second actor is fenced")
            assert not zombie.call(zombie.state())["serving"]
        cluster.until(lambda: cluster.authority() == "eu-west", "the first actor serves again")
        flowing = writers.total
        cluster.until(lambda: writers.total > flowing + 20, "writes flow again")
    assert not writers.odd
    assert "newer instance" in zombie.ended[0]
    assert [region for region in cluster.regions if cluster.shard(region).get("serving")] == ["eu-west"]
    # One epoch for each of the two; a few more where an activation had to begin again, but no endless alternation.
    assert first + 2 <= status(cluster, "eu-west").fence <= first + 5
    cluster.post("us-east", board, [delta(event.event_id) for event in own])  # what the second one did not get through, if anything
    last = cluster.post("us-east", board, delta("last"))
    assert len({*tops(cluster, board, last)}) == 1
    events = scored(on_store(cluster, "ap-south", all_entries), number_of(cluster, board))
    acked = {event_id for event_ids in writers.acked.values() for event_id in event_ids}
    assert sorted(events) == sorted([*acked, *(event.event_id for event in own), "last"])
    value = cluster.get("ap-south", f"/v1/boards/{board}/players/ann", after=last).json()["entries"][0]["value"]
    assert value == str(len(events))


def test_an_operators_failover_is_not_undone_when_the_old_regions_actor_is_killed(settled: RunningCluster) -> None:
    cluster, board = settled, settled.fresh_board()
    moved = operate(cluster, "ap-south", "failover", shard=SHARD, to="us-east")
    assert moved.status_code == 200, moved.text
    epoch = moved.json()["moved"][0]["epoch"]
    old = cluster.shard_pid("eu-west")
    os.kill(old, signal.SIGKILL)
    cluster.until(lambda: cluster.shard_pid("eu-west") not in (0, old), "the actor is made anew")
    cluster.until(lambda: f"owns epoch {epoch}" in cluster.shard("eu-west").get("why", ""), "the new actor has looked and follows")
    for each in cluster.regions:
        reply = cluster.post(each, board, {"event_id": f"e-{each}", "player_id": each, "value": 1})
        assert acknowledged(reply), reply.text
        assert reply.json()["results"][0]["epoch"] == epoch
    assert cluster.authority() == "us-east"
    assert status(cluster, "eu-west").fence == epoch


def test_a_seal_that_nobody_goes_on_with_is_overcome_within_3_s(settled: RunningCluster) -> None:
    """A coordinator dies after it has sealed one store: writes stop, and the old authority is back under a newer epoch by itself."""
    cluster, board = settled, settled.fresh_board()
    assert acknowledged(cluster.post("us-east", board, {"event_id": "before", "player_id": "ann", "value": 1}))

    async def seal(journal: RedisJournal) -> int:
        now = await journal.status()
        assert now.newest is not None
        answer = await journal.seal(
            Seal(
                shard=SHARD, lineage=now.lineage, config_version=now.newest.config_version, sender="us-east", incarnation=now.incarnation,
                request_id="r", epoch=now.fence + 1, target="us-east", attempt=uuid.uuid4().hex, from_epoch=now.newest.epoch,
                from_owner=now.newest.owner,
            )
        )  # fmt: skip
        assert isinstance(answer, Granted), answer
        return answer.status.fence

    sealed = on_store(cluster, "us-east", seal)
    cluster.until(lambda: status(cluster, "us-east").terms[-1].epoch > sealed, "a newer epoch has started", timeout_s=3.0)
    cluster.until(lambda: cluster.authority() == "eu-west", "eu-west is back")
    reply = cluster.post("us-east", board, {"event_id": "after", "player_id": "ann", "value": 2})
    assert acknowledged(reply), reply.text
    assert reply.json()["results"][0]["epoch"] > sealed
    assert len({*tops(cluster, board, reply)}) == 1


def test_a_store_put_back_from_earlier_is_found_amnesiac_does_not_vote_and_is_readmitted(settled: RunningCluster, tmp_path: Path) -> None:
    """1. A copy of ap-south's store is made, as a backup does it. 2. ap-south holds more. 3. It is down, and the copy is put back. 4. It
    is found out: without it and with us-east cut off there is no majority. 5. Readmission brings it back."""
    cluster, board = settled, settled.fresh_board("cumulative")
    store = cluster.data_dir / "ap-south" / "store"
    shutil.copytree(store, tmp_path / "store")
    for number in range(5):
        assert acknowledged(cluster.post("ap-south", board, delta(f"later-{number}")))
    cluster.until(lambda: status(cluster, "ap-south").tail == status(cluster, "eu-west").tail, "ap-south holds everything")
    cluster.launcher.hold("ap-south")
    cluster.launcher.regions["ap-south"].kill()
    shutil.rmtree(store)
    shutil.copytree(tmp_path / "store", store)
    cluster.launcher.release("ap-south")

    def counts() -> bool | None:
        """Whether the authority counts ap-south; None where it does not say."""
        amnesiac = cluster.shard("eu-west").get("lag", {}).get("ap-south", {}).get("amnesiac")
        return None if amnesiac is None else not amnesiac

    def found() -> bool:
        return counts() is False and cluster.shard("ap-south").get("role") == "amnesiac"

    cluster.until(found, "ap-south is reported as amnesiac by the authority and by itself", timeout_s=180)
    assert acknowledged(cluster.post("us-east", board, delta("two-of-three")))
    assert status(cluster, "ap-south").amnesiac
    refused = operate(cluster, "us-east", "failover", shard=SHARD, to="ap-south", force=True)
    assert (refused.status_code, refused.json()["code"]) == (409, "failover_refused"), refused.text
    assert "readmit" in refused.json()["detail"]
    link(cluster, "us-east", "eu-west", "drop")
    link(cluster, "us-east", "ap-south", "drop")
    refused = operate(cluster, "eu-west", "failover", shard=SHARD, to="eu-west", force=True)
    assert (refused.status_code, "1 of 3" in refused.json()["detail"]) == (409, True), refused.text
    assert cluster.post("eu-west", board, delta("no-majority")).status_code == 503
    link(cluster, "us-east", "eu-west", "clear")
    link(cluster, "us-east", "ap-south", "clear")
    cluster.until(lambda: cluster.authority() == "eu-west", "eu-west serves again")

    readmitted = operate(cluster, "us-east", "regions/ap-south/readmit")
    assert readmitted.status_code == 200, readmitted.text
    last = cluster.until(lambda: (r := cluster.post("ap-south", board, delta("no-majority"))).status_code == 200 and r, "writes go on")
    assert len({*tops(cluster, board, last)}) == 1
    assert cluster.get("ap-south", f"/v1/boards/{board}/players/ann").json()["entries"][0]["value"] == "7"
    cluster.until(lambda: committed_log(cluster, "ap-south") == committed_log(cluster, "eu-west"), "equal logs")
    assert not status(cluster, "ap-south").amnesiac
    cluster.until(counts, "the authority counts ap-south again")
    cluster.until(lambda: cluster.shard("ap-south").get("role") == "follower", "ap-south says so itself")
