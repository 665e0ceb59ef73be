"""The story: seasons are played, the home region is killed on the way, another takes over, the dead one returns and is owner again."""

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
from demo.cluster import HOME, SHARD, DemoCluster
from demo.narrator import Narrator
from demo.play import Championships
from demo.seasons import DECIMALS, Season
from demo.tally import Ack, OffTrackError, Pace, Tally
from laurel import Conflict, LaurelError, OutcomeUnknown, SubmitReply, Unavailable

SUCCESSOR = "us-east"
#: Shares of all races after which the home region dies, and from which on the others wait for its return.
KILL_AT, WAIT_AT = 0.3, 0.85
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
            f"{len(self._seasons)} boards are at home in {HOME}. Game servers of all regions now submit {results:,} results of "
            f"{self.pace.total} races, {min(PARALLEL, len(self._seasons))} seasons at a time."
        )
        try:
            self._play.start()
            self.pace.wait_done(int(self.pace.total * KILL_AT))
            while not self._in_mid_season() and self.pace.done < self.pace.total * KILL_BEFORE:
                self.pace.wait_done(self.pace.done + 1)
            sweep = self._kill_home()
            self._promote()
            sweep.result()
            self._narrator.say(f"No process of {HOME} is left.")
            self.pace.wait_done(self.pace.done + max(1, int(self.pace.total * ALONE_AT_LEAST)))
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
        def create(season: Season) -> None:
            self._cluster.operator.create_board(
                season.board, policy="cumulative", ranking="competition", decimals=DECIMALS, home=HOME, visibility="public"
            )

        list(self._pool.map(create, self._seasons))
        wanted = {season.board for season in self._seasons}
        for region in self._cluster.regions:
            self._until(partial(self._knows, region, wanted), f"{region} knows all boards", 30)

    def _knows(self, region: str, wanted: set[str]) -> bool:
        return wanted <= {board.board for board in self._cluster.reader.boards(region=region)}

    def _in_mid_season(self) -> bool:
        """Whether most seasons under way have raced thrice, and have as many races left."""
        places = self._play.under_way_now()
        return 2 * sum(3 < race < races - 2 for race, races in places.values()) > len(places)

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
        moved = self._move(SUCCESSOR, force=True)
        m, now = self.moments, time.monotonic()
        m.promoted_at, m.forced_ms = now, moved["duration_ms"]
        first = self._until(lambda: self.tally.first_ack_after(m.promoted_at), f"a write is acknowledged by {SUCCESSOR}", 30)
        self._narrator.say(
            f"Forced failover: {SUCCESSOR} owns {len(moved['boards'])} boards since epoch {moved['epoch']}, after {m.forced_ms} ms. "
            f"First acknowledged write {first - m.killed_at:.2f} s after the kill.",
            style="bold",
        )

    def _move(self, to: str, *, force: bool) -> dict[str, Any]:
        reply = self._cluster.operator.failover(SHARD, to=to, force=force)
        return dict(reply["moved"][0])

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
            saved = (ack.result.value, ack.result.version, ack.result.position)
            if not result.duplicate or (result.value, result.version, result.position) != saved:
                came = f"{result.outcome} {result.value} at {result.position}"
                raise OffTrackError(f"{ack.sent.event_id}, sent again through {region}, came back as {came}; saved was {saved}")

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
        goal = int(self._cluster.shard(SUCCESSOR)["committed"])
        self._until(lambda: self._has_caught_up(goal), f"{HOME} follows and has caught up", RETURN_S)
        m.back_at = time.monotonic()
        self._play.away.discard(HOME)
        tried, _ = proofs.no_old_epoch_can_write(self._cluster, self._cluster.regions)
        m.old_epoch_writes += tried
        self._narrator.say(
            f"{HOME} is back after {m.back_at - m.released_at:.1f} s: a follower now, caught up to offset {goal}, reads served. "
            f"Writes under its old epoch: {tried} tried in all three stores, all fenced.",
            style="bold green",
        )

    def _has_caught_up(self, goal: int) -> bool:
        shard = self._cluster.shard(HOME)
        replica = shard.get("replica", {})
        return (
            shard.get("role") == "follower"
            and shard.get("known_owner") == SUCCESSOR
            and int(shard.get("applied", 0)) >= goal
            and int(replica.get("applied", 0)) >= goal
            and bool(replica.get("serving"))
        )

    def _hand_home(self) -> None:
        m = self.moments
        self.pace.allow()
        self.pace.wait_done(self.pace.done + 2)
        m.home_begun_at = time.monotonic()
        moved = self._move(HOME, force=False)
        m.home_at, m.handover_ms = time.monotonic(), moved["duration_ms"]
        self._narrator.say(
            f"Planned handover: {HOME} owns its boards again since epoch {moved['epoch']}, after {m.handover_ms} ms, "
            f"with {self.pace.total - self.pace.done} races to go.",
            style="bold",
        )

    def _prove(self) -> None:
        say, tally = self._narrator.say, self.tally
        facts = proofs.every_event_is_there_once(self._cluster, tally)
        self.moments.lost = facts.lost
        say(
            f"Proof 1: {len(tally.acks):,} acknowledged events, each exactly once in the journal; "
            f"its {facts.entries:,} entries are the same in all three stores."
        )
        pages = proofs.same_generations_everywhere(self._cluster, self._seasons, facts, tally)
        say(f"Proof 2: the last generation of all {len(pages)} boards has its published checksum and is the same bytes in all regions.")
        tried, started = proofs.no_old_epoch_can_write(self._cluster, self._cluster.regions)
        self.moments.old_epoch_writes += tried
        told = ", ".join(f"{epoch.epoch} {epoch.owner} ({epoch.cause})" for epoch in started)
        # A slow machine may make an owner start anew in between: that is an epoch too, and no change of owner.
        moves = [epoch for before, epoch in zip([None, *started], started, strict=False) if before is None or before.owner != epoch.owner]
        if [(epoch.owner, epoch.cause) for epoch in moves] != [(HOME, "genesis"), (SUCCESSOR, "forced"), (HOME, "handover")]:
            raise OffTrackError(f"the journal's epochs should be {HOME}, {SUCCESSOR} and {HOME} again, and are {told}")
        say(f"Proof 3: {tried} writes with the tokens of older epochs, all refused as fenced. Epochs: {told}.")
        proofs.finals_are_official(self._seasons, pages, tally)
        say(f"Proof 4: the final standings of all {len(self._seasons)} seasons are the official ones.")

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
            ("usual submission", f"{tally.usual_s() * 1000:.0f} ms"),
            ("longest write pause seen by a client", f"{tally.longest_s() * 1000:,.0f} ms"),
            ("  around the kill and forced failover", f"{tally.longest_s(m.killed_at, m.promoted_at) * 1000:,.0f} ms"),
            ("  around the planned handover", f"{tally.longest_s(m.home_begun_at, m.home_at) * 1000:,.0f} ms"),
            ("forced failover", f"{m.forced_ms} ms"),
            ("planned handover", f"{m.handover_ms} ms"),
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
