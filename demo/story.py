"""The story: seasons are played, a board is spread over three shards, the home region is killed, replaced, and is back in the end."""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

from demo import proofs
from demo.cluster import HOME, SHARDS, DemoCluster
from demo.narrator import Narrator
from demo.play import Championships
from demo.seasons import ALL_TIME, DECIMALS, Season
from demo.tally import Ack, OffTrackError, Pace, Tally
from laurel import Conflict, LaurelError, OutcomeUnknown, SubmitReply, Unavailable

SUCCESSOR = "us-east"
#: Shares of all races after which a board is spread, the home region dies, and from which on the others wait for its return.
SPREAD_AT, KILL_AT, WAIT_AT = 0.12, 0.3, 0.85
#: By then it dies, also where most seasons have just begun or are nearly over.
KILL_BEFORE = 0.4
#: Races that two regions play alone before the third is started again.
ALONE_AT_LEAST = 0.1
#: Races begun a second at most while the dead region starts: the machine's cores are for its return first.
PER_S_MEANWHILE = 12.0
#: They are spread over about this long, where there are not so many of them.
MEANWHILE_S = 12.0
RESENT_SHARE = 0.05
RETURN_S = 120.0
PARALLEL = 6


@dataclass(slots=True, kw_only=True)
class Moments:
    """What the story measured, in seconds unless its name says more; instants by the monotonic clock."""

    started_s: float = 0.0
    spread_begun_at: float = 0.0
    spread_at: float = 0.0
    killed_at: float = 0.0
    promoted_at: float = 0.0
    forced_ms: int = 0
    released_at: float = 0.0
    ready_at: float = 0.0
    back_at: float = 0.0
    home_begun_at: float = 0.0
    home_at: float = 0.0
    handover_ms: int = 0
    resent: int = 0
    lost: int = 0
    old_epoch_writes: int = 0


class Story:
    """Told once. Any `OffTrackError` or `LaurelError` on the way is the end of it."""

    def __init__(self, cluster: DemoCluster, seasons: list[Season], narrator: Narrator, *, seed: int) -> None:
        self._cluster, self._seasons, self._narrator = cluster, seasons, narrator
        self._dice = random.Random(seed)
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="operator")
        total = sum(len(season.races) for season in seasons)
        self.tally, self.moments = Tally(), Moments()
        self.pace = Pace(total, limit=max(1, int(total * WAIT_AT)))
        self._play = Championships(
            cluster, seasons, tally=self.tally, pace=self.pace, narrator=narrator, parallel=min(PARALLEL, len(seasons)), seed=seed
        )

    def tell(self) -> None:
        """From three empty regions to the proofs."""
        say = self._narrator.say
        began = time.monotonic()
        say(f"Starting three regions ({', '.join(self._cluster.regions)}), each with its own store, Ray and gateway.")
        self._cluster.start(self._narrator)
        self._create_boards()
        self.moments.started_s = time.monotonic() - began
        results = sum(len(race.results) for season in self._seasons for race in season.races)
        say(
            f"{len(self._seasons)} boards share {len(SHARDS)} shards at home in {HOME}; one more is for all seasons. "
            f"Game servers of all regions now submit {results:,} results of {self.pace.total} races, each to two boards, "
            f"{min(PARALLEL, len(self._seasons))} seasons at a time."
        )
        try:
            self._play.start()
            self.pace.wait_done(int(self.pace.total * SPREAD_AT))
            self._spread()
            self.pace.wait_done(int(self.pace.total * KILL_AT))
            while not self._in_mid_season() and self.pace.done < self.pace.total * KILL_BEFORE:
                self.pace.wait_done(self.pace.done + 1)
            sweep = self._kill_home()
            self._promote()
            sweep.result()
            self._narrator.say(f"No process of {HOME} is left.")
            self.pace.wait_done(self.pace.done + max(1, int(self.pace.total * ALONE_AT_LEAST)))
            self._sort("While it is away")
            self._resend()
            self._bring_back()
            self._hand_home()
            self.pace.wait_done(self.pace.total)
            self._play.join(10)
        except BaseException as error:
            self.pace.fail(error)
            raise
        finally:
            self._narrator.end_bar()
        self._prove()

    def _create_boards(self) -> None:
        places: dict[str, dict[str, Any]] = {season.board: {"home": HOME} for season in self._seasons}
        places[ALL_TIME] = {"shards": [SHARDS[0]]}

        def create(board: str) -> None:
            self._cluster.operator.create_board(
                board, policy="cumulative", ranking="competition", decimals=DECIMALS, visibility="public", **places[board]
            )

        list(self._pool.map(create, places))
        wanted = set(places)
        for region in self._cluster.regions:
            self._until(partial(self._knows, region, wanted), f"{region} knows all boards", 30)

    def _knows(self, region: str, wanted: set[str]) -> bool:
        return wanted <= {board.board for board in self._cluster.reader.boards(region=region)}

    def _in_mid_season(self) -> bool:
        """Whether most seasons under way have raced thrice, and have as many races left."""
        places = self._play.under_way_now()
        return 2 * sum(3 < race < races - 2 for race, races in places.values()) > len(places)

    def _spread(self) -> None:
        """The board of all seasons goes from one shard to three, and nobody stops for it."""
        m = self.moments
        self._sort("Before the move")
        m.spread_begun_at = time.monotonic()
        self._cluster.operator.relocate(ALL_TIME, list(SHARDS))
        for region in self._cluster.regions:
            self._until(partial(self._is_spread, region), f"{region} shows the board of all seasons on {len(SHARDS)} shards", 30)
        m.spread_at = time.monotonic()
        self.pace.wait_done(self.pace.done + PARALLEL)  # by then those are over that met the switch
        pause_s = self.tally.longest_s(m.spread_begun_at, m.spread_at, ALL_TIME)
        self._narrator.say(
            f"Resharded while scores come in: that board is on {len(SHARDS)} shards after {m.spread_at - m.spread_begun_at:.1f} s, "
            f"and no submission to it took longer than {pause_s * 1000:,.0f} ms.",
            style="bold",
        )
        self._sort("After the move")

    def _is_spread(self, region: str) -> bool:
        board = self._cluster.operator.board(ALL_TIME, region=region)
        page = self._cluster.operator.top(ALL_TIME, 1, region=region)
        return board.shards == SHARDS and page.boundaries.keys() == set(SHARDS)

    def _sort(self, when: str) -> None:
        page = proofs.ranks_are_a_plain_sort(self._cluster, self._seasons, self._play.regions_up(), self.tally)
        self._narrator.say(
            f"{when}: the board of all seasons on {len(page.boundaries)} shard{'s' * (len(page.boundaries) > 1)}, {page.generation}: "
            f"all {page.total} ranks are those of a plain sort of the events up to its boundary."
        )

    def _kill_home(self) -> Future[None]:
        """SIGKILL all of the region. What is returned is done when no process of it is left."""
        under_way = ", ".join(f"{year} (race {race} of {races})" for year, (race, races) in sorted(self._play.under_way_now().items()))
        self._narrator.say(
            f"Killing {HOME}, which owns every board: SIGKILL to its store, Ray and gateway. Under way: {under_way}.", style="bold red"
        )
        self._play.away.add(HOME)
        self._cluster.launcher.hold(HOME)
        region = self._cluster.launcher.regions[HOME]
        self.moments.killed_at = time.monotonic()
        # A region dies with its supervisor. `kill` then looks all over the machine for what may be left: nobody waits for that.
        sweep = self._pool.submit(region.kill)
        while region.alive() and not sweep.done():
            time.sleep(0.002)
        return sweep

    def _promote(self) -> None:
        moved = self._move(HOME, SUCCESSOR, force=True)
        m, now = self.moments, time.monotonic()
        m.promoted_at, m.forced_ms = now, max(shard["duration_ms"] for shard in moved)
        boards = {board for shard in moved for board in shard["boards"]}
        first = self._until(lambda: self.tally.first_ack_after(m.promoted_at), f"a write is acknowledged by {SUCCESSOR}", 30)
        self._narrator.say(
            f"Forced failover: {SUCCESSOR} owns {len(moved)} shards with {len(boards)} boards since epoch {_epochs(moved)}, after "
            f"{m.forced_ms} ms. First acknowledged write {first - m.killed_at:.2f} s after the kill.",
            style="bold",
        )

    def _move(self, owner: str, to: str, *, force: bool) -> list[dict[str, Any]]:
        """All shards of a region; what each move says of itself."""
        reply = self._cluster.operator.failover(from_region=owner, to=to, force=force)
        moved = [dict(shard) for shard in reply["moved"]]
        if {shard["shard"] for shard in moved} != set(SHARDS):
            raise OffTrackError(f"{len(SHARDS)} shards should have moved to {to}, and {len(moved)} did: {reply['failed']}")
        return moved

    def _resend(self) -> None:
        """A part of what was acknowledged is sent again, through another region; and one event with another content."""
        known = self.tally.all_acks()
        chosen = self._dice.sample(known, max(1, int(len(known) * RESENT_SHARE)))
        groups: defaultdict[tuple[str, str], list[Ack]] = defaultdict(list)
        for ack in chosen:
            groups[ack.board, self._dice.choice([region for region in self._play.regions_up() if region != ack.region])].append(ack)
        for (board, region), acks in groups.items():
            self._resend_batch(board, region, acks)
        self.moments.resent = len(chosen)
        self._forge(chosen[0])
        self._narrator.say(
            f"{len(chosen)} acknowledged events sent again through another region: each a duplicate with its saved value. "
            "One with other points: a conflict."
        )

    def _resend_batch(self, board: str, region: str, acks: list[Ack]) -> None:
        events = [ack.sent.event for ack in acks]
        reply: SubmitReply = self._patiently(lambda: self._cluster.sender.submit(board, events, region=region))
        for ack, result in zip(acks, reply.results, strict=True):
            saved, came = (ack.result.value, ack.result.version), (result.value, result.version)
            # What was recorded before the move of the board, when it had one shard and so a generation to name, has another place now.
            at_home = ack.board != ALL_TIME or (ack.result.visible_by is None and not ack.result.duplicate)
            if not result.duplicate or came != saved or (at_home and result.position != ack.result.position):
                said = f"{result.outcome} {came} at {result.position}"
                raise OffTrackError(f"{ack.sent.event_id}, sent again through {region}, came back as {said}; saved was {ack.result}")

    def _forge(self, ack: Ack) -> None:
        forged = {**ack.sent.event, "delta": ack.sent.points + Decimal(1)}
        region = self._play.regions_up()[0]
        try:
            reply: SubmitReply = self._patiently(lambda: self._cluster.sender.submit(ack.board, forged, region=region))
        except Conflict:
            return
        raise OffTrackError(f"{ack.sent.event_id} with other points was {reply.results[0].outcome}, not a conflict")

    def _bring_back(self) -> None:
        m = self.moments
        limit = int(self.pace.total * WAIT_AT)
        self.pace.allow(limit, per_s=max(0.5, min(PER_S_MEANWHILE, (limit - self.pace.done) / MEANWHILE_S)))
        m.released_at = time.monotonic()
        self._narrator.say(f"Starting {HOME} again on its old data ({self.pace.done} of {self.pace.total} races are done).")
        self._cluster.launcher.release(HOME)
        self._until(lambda: self._cluster.ready(HOME), f"{HOME} is ready again", RETURN_S)
        m.ready_at = time.monotonic()
        goal = {name: int(shard["committed"]) for name, shard in self._cluster.shards(SUCCESSOR).items()}
        self._until(lambda: self._has_caught_up(goal), f"{HOME} follows and has caught up", RETURN_S)
        m.back_at = time.monotonic()
        self._play.away.discard(HOME)
        tried, _ = proofs.no_old_epoch_can_write(self._cluster, self._cluster.regions)
        m.old_epoch_writes += tried
        self._narrator.say(
            f"{HOME} is back after {m.back_at - m.released_at:.1f} s: a follower now, caught up to {sum(goal.values()):,} entries, reads "
            f"served. Writes under its old epochs: {tried} tried in all three stores, all fenced.",
            style="bold green",
        )

    def _has_caught_up(self, goal: dict[str, int]) -> bool:
        return all(_follows(shard, goal[name]) for name, shard in self._cluster.shards(HOME).items())

    def _hand_home(self) -> None:
        m = self.moments
        self.pace.allow()
        self.pace.wait_done(self.pace.done + 2)
        m.home_begun_at = time.monotonic()
        moved = self._move(SUCCESSOR, HOME, force=False)
        m.home_at, m.handover_ms = time.monotonic(), max(shard["duration_ms"] for shard in moved)
        self._narrator.say(
            f"Planned handover: {HOME} owns its {len(moved)} shards again since epoch {_epochs(moved)}, after {m.handover_ms} ms, "
            f"with {self.pace.total - self.pace.done} races to go.",
            style="bold",
        )

    def _prove(self) -> None:
        say, tally = self._narrator.say, self.tally
        for at_least in proofs.last_positions(tally, ALL_TIME):
            self._patiently(partial(self._cluster.reader.top, ALL_TIME, 1, at_least=at_least))
        facts = proofs.every_event_is_there_once(self._cluster, tally)
        self.moments.lost = facts.lost
        say(
            f"Proof 1: {len(tally.acks):,} acknowledged events, each exactly once in the journals of {len(SHARDS)} shards; "
            f"their {facts.entries:,} entries are the same in all three stores."
        )
        pages = proofs.same_generations_everywhere(self._cluster, self._seasons, facts, tally)
        say(f"Proof 2: the last generation of all {len(pages)} boards has its published checksum and is the same bytes in all regions.")
        tried, epochs = proofs.no_old_epoch_can_write(self._cluster, self._cluster.regions)
        self.moments.old_epoch_writes += tried
        for shard, started in epochs.items():
            told = ", ".join(f"{epoch.epoch} {epoch.owner} ({epoch.cause})" for epoch in started)
            # A slow machine may make an owner start anew in between: that is an epoch too, and no change of owner.
            moves = [e for before, e in zip([None, *started], started, strict=False) if before is None or before.owner != e.owner]
            if [(epoch.owner, epoch.cause) for epoch in moves] != [(HOME, "genesis"), (SUCCESSOR, "forced"), (HOME, "handover")]:
                raise OffTrackError(f"the epochs of {shard} should be {HOME}, {SUCCESSOR} and {HOME} again, and are {told}")
        say(f"Proof 3: {tried} writes with the tokens of older epochs, all refused as fenced. Epochs of {shard}: {told}.")
        proofs.finals_are_official(self._seasons, pages, tally)
        say(f"Proof 4: the final standings of all {len(self._seasons)} seasons are the official ones.")
        number, _ = facts.published[ALL_TIME]
        page = proofs.ranks_are_a_plain_sort(self._cluster, self._seasons, self._cluster.regions, tally, f"s{number}")
        official = {player: total for player, total in _sums(self._seasons).items() if total}
        if {entry.player_id: entry.value for entry in page.entries} != official:
            raise OffTrackError("the board of all seasons does not hold the sums of the official final standings")
        say(
            f"Proof 5: the board over {len(page.boundaries)} shards holds the sum of all seasons for each of {page.total} drivers, "
            "and its ranks are those of a plain sort."
        )

    def figures(self) -> list[tuple[str, str]]:
        """The table at the end."""
        m, tally = self.moments, self.tally
        return [
            ("events submitted", f"{tally.submitted:,}"),
            ("acknowledged by a quorum", f"{len(tally.acks):,}"),
            ("  of these on a repeated request", f"{tally.repeated:,}"),
            ("acknowledged and lost", f"{m.lost:,}"),
            ("sent again on purpose, all duplicates", f"{m.resent:,}"),
            ("races checked", f"{tally.races:,}"),
            ("rows equal to the official answer", f"{tally.rows:,}"),
            ("  of these official zeros, not ranked", f"{tally.unranked:,}"),
            ("pages compared byte for byte", f"{tally.pages:,}"),
            ("writes of old epochs tried, all fenced", f"{m.old_epoch_writes:,}"),
            ("ranks over shards equal to a plain sort", f"{tally.sorted_ranks:,}"),
            ("usual submission", f"{tally.usual_s() * 1000:.0f} ms"),
            ("longest write pause seen by a client", f"{tally.longest_s() * 1000:,.0f} ms"),
            ("  around the kill and forced failover", f"{tally.longest_s(m.killed_at, m.promoted_at) * 1000:,.0f} ms"),
            ("  around the planned handover", f"{tally.longest_s(m.home_begun_at, m.home_at) * 1000:,.0f} ms"),
            ("  around the reshard, at its board", f"{tally.longest_s(m.spread_begun_at, m.spread_at, ALL_TIME) * 1000:,.0f} ms"),
            ("reshard of one shard to three, under writes", f"{(m.spread_at - m.spread_begun_at) * 1000:,.0f} ms"),
            ("forced failover, slowest of the shards", f"{m.forced_ms} ms"),
            ("planned handover, slowest of the shards", f"{m.handover_ms} ms"),
            ("dead region started to serving again", f"{m.ready_at - m.released_at:.1f} s"),
            ("  and caught up as a follower", f"{m.back_at - m.released_at:.1f} s"),
            ("three regions and boards from nothing", f"{m.started_s:.1f} s"),
            ("wall time", f"{self._narrator.elapsed_s:.1f} s"),
        ]

    def _until(self, holds: Callable[[], Any], what: str, timeout_s: float) -> Any:
        """Poll until `holds()`. Raises what a season failed with meanwhile, or `OffTrackError` that says what did not come."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.pace.raise_error()
            try:
                if value := holds():
                    return value
            except LaurelError as error:
                what = f"{what} ({error})" if time.monotonic() > deadline else what
            if time.monotonic() > deadline:
                raise OffTrackError(f"not within {timeout_s:g} s: {what}")
            time.sleep(0.1)

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Repeat a call with event ids until its outcome is known. Raises the last error after 30 s."""
        deadline = time.monotonic() + 30
        while True:
            try:
                return call()
            except (OutcomeUnknown, Unavailable):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _epochs(moved: list[dict[str, Any]]) -> str:
    """`2`, or `2 and 3` where the shards do not agree."""
    return " and ".join(map(str, sorted({shard["epoch"] for shard in moved})))


def _follows(shard: dict[str, Any], goal: int) -> bool:
    replica = shard.get("replica", {})
    return (
        shard.get("role") == "follower"
        and shard.get("known_owner") == SUCCESSOR
        and int(shard.get("applied", 0)) >= goal
        and int(replica.get("applied", 0)) >= goal
        and bool(replica.get("serving"))
    )


def _sums(seasons: list[Season]) -> dict[str, Decimal]:
    """Of the official final standings."""
    sums: defaultdict[str, Decimal] = defaultdict(Decimal)
    for season in seasons:
        for player, total in season.races[-1].totals.items():
            sums[player] += total
    return dict(sums)
