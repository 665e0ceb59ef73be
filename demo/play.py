"""Game servers of all regions play a season: submit a race, read the standings elsewhere, compare with the official answer."""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Collection

from demo.cluster import DemoCluster
from demo.narrator import Narrator
from demo.seasons import ALL_TIME, Race, Result, Season
from demo.tally import Ack, OffTrackError, Pace, StoppedError, Tally
from laurel import EventResult, OutcomeUnknown, Places, Unavailable
from laurel.models import Envelope

#: How long clients go on trying; a failover is far shorter.
PATIENCE_S = 60.0
#: Every so many seasons, pages are compared between the regions after each race, not only at the end.
COMPARE_EVERY = 4


class Championships:
    """All seasons, several at a time, each in a thread that goes through its races in order."""

    def __init__(
        self, cluster: DemoCluster, seasons: list[Season], *, tally: Tally, pace: Pace, narrator: Narrator, parallel: int, seed: int
    ) -> None:
        self._cluster, self._tally, self._pace, self._narrator = cluster, tally, pace, narrator
        self._waiting = deque(enumerate(seasons))
        self._seasons = len(seasons)
        self._seed = seed
        self._finished = 0
        self._lock = threading.Lock()
        self._under_way: dict[int, tuple[int, int]] = {}
        #: Regions that are down on purpose: nobody is sent there to read.
        self.away: set[str] = set()
        self._threads = [threading.Thread(target=self._work, name=f"season-{n}", daemon=True) for n in range(parallel)]

    def start(self) -> None:
        """Begin; each thread takes the oldest season that is left."""
        for thread in self._threads:
            thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads, at most so long altogether."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def under_way_now(self) -> dict[int, tuple[int, int]]:
        """Year -> (race, races) of the seasons under way."""
        with self._lock:
            return dict(self._under_way)

    def regions_up(self) -> list[str]:
        """Those that are not away."""
        return [region for region in self._cluster.regions if region not in self.away]

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._waiting:
                        return
                    index, season = self._waiting.popleft()
                self._play(index, season)
        except StoppedError:
            return
        except BaseException as error:  # told by the main thread
            self._pace.fail(error)

    def _play(self, index: int, season: Season) -> None:
        dice = random.Random(f"{self._seed}-{season.year}")
        for number, race in enumerate(season.races):
            self._pace.begin()
            with self._lock:
                self._under_way[season.year] = (number + 1, len(season.races))
            self._race(season, race, (index + number) % len(self._cluster.regions), dice, compare=index % COMPARE_EVERY == 0)
            self._pace.end_race()
            self._narrator.races(self._pace.done, self._pace.total, f"{self._finished} of {self._seasons} seasons done")
        with self._lock:
            del self._under_way[season.year]
            self._finished += 1
            finished = self._finished
        if finished % 6 == 0 or finished == self._seasons:
            self._narrator.say(f"{finished} of {self._seasons} seasons done: {self._pace.done} races checked")

    def _race(self, season: Season, race: Race, turn: int, dice: random.Random, *, compare: bool) -> None:
        """One region sends little of this race and is asked for the standings after it, a new one each time."""
        order = self._cluster.regions[turn:] + self._cluster.regions[:turn]
        batches: dict[str, list[Result]] = {}
        for result in race.results:
            batches.setdefault(dice.choices(order, (1, 4, 4))[0], []).append(result)
        acks = [ack for region, results in batches.items() for ack in self._submit(season, season.board, region, results)]
        self._submit(season, ALL_TIME, order[-1], list(race.results))
        taken = Counter(ack.region for ack in acks)
        places = self._read(season, race, sorted(order, key=lambda region: taken[region]), _last_position(acks))
        compare_places(season, race, places, places.absent)
        self._tally.checked(rows=len(race.totals), unranked=len(race.unranked), races=1)
        if compare:
            self._compare_pages(season, places.generation)

    def _submit(self, season: Season, board: str, region: str, results: list[Result]) -> list[Ack]:
        """As a game server near `region`; with the same ids until it is known what became of every event."""
        events = [result.event for result in results]
        self._tally.sent(len(events))
        began = time.monotonic()
        while True:
            self._pace.check()
            try:
                reply = self._cluster.servers[region].submit(board, events)
                break
            except (OutcomeUnknown, Unavailable) as error:
                if time.monotonic() - began > PATIENCE_S:
                    raise OffTrackError(f"no region took a race of {season.year} within {PATIENCE_S:g} s: {error}") from error
                time.sleep(0.1)
        acks = [
            Ack(board=board, sent=sent, result=result, region=reply.region or region)
            for sent, result in zip(results, reply.results, strict=True)
        ]
        self._tally.took(began, time.monotonic(), board, acks)
        for ack in acks:
            _check_ack(ack.sent, ack.result)
        return acks

    def _read(self, season: Season, race: Race, preferred: list[str], at_least: str) -> Places:
        """The places of all official drivers, in the first of `preferred` that is up, at or after the last acknowledgement."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._pace.check()
            region = next(region for region in preferred if region not in self.away)
            try:
                places = self._cluster.reader.ranks(season.board, list(race.totals), at_least=at_least, region=region)
            except (OutcomeUnknown, Unavailable) as error:
                if time.monotonic() > deadline:
                    raise OffTrackError(
                        f"{region} shows nothing as new as {at_least} of {season.year} after {PATIENCE_S:g} s: {error}"
                    ) from error
                time.sleep(0.05)
                continue
            if places.region != region:
                raise OffTrackError(f"{region} was asked for {season.year}, and {places.region} answered")
            return places

    def _compare_pages(self, season: Season, generation: str) -> None:
        """The same bytes in every region that is up. One that goes away or lags behind is waited for, or left out when it is away."""
        deadline = time.monotonic() + PATIENCE_S
        bodies: dict[str, bytes] = {}
        while missing := [region for region in self.regions_up() if region not in bodies]:
            self._pace.check()
            for region in missing:
                body = self._cluster.page_bytes(region, season.board, generation)
                if body is not None:
                    bodies[region] = body
            if len(bodies) < len(self.regions_up()):
                if time.monotonic() > deadline:
                    raise OffTrackError(f"{', '.join(missing)} does not show {season.year} in {generation} after {PATIENCE_S:g} s")
                time.sleep(0.02)
        if len(set(bodies.values())) != 1:
            raise OffTrackError(f"{season.year}: {generation} is not the same bytes in {', '.join(bodies)}")
        self._tally.checked(pages=len(bodies))


def _check_ack(sent: Result, result: EventResult) -> None:
    if not (result.applied or result.duplicate):
        raise OffTrackError(f"{sent.event_id} came back as {result.outcome} {result.code or ''}".rstrip())
    if result.acked != "quorum":
        raise OffTrackError(f"{sent.event_id} was acknowledged as {result.acked}, not by a quorum")


def _last_position(acks: list[Ack]) -> str:
    epoch, offset = max((ack.result.epoch or 0, ack.result.offset or 0) for ack in acks)
    return f"{epoch}-{offset}"


def compare_places(season: Season, race: Race, places: Envelope, absent: Collection[str]) -> None:
    """Totals, competition ranks and who is not ranked, against the official standings. Raises `OffTrackError` at the first difference."""
    where = f"{season.year} after {race.name}, {places.generation}" + (f" in {places.region}" if places.region else "")
    given = {entry.player_id: entry for entry in places.entries}
    ranked = race.ranked
    for player, rank in ranked.items():
        entry = given.get(player)
        if entry is None:
            raise OffTrackError(f"{where}: {player} is not ranked, but has {race.totals[player]} points")
        if entry.value != race.totals[player]:
            raise OffTrackError(f"{where}: {player} has {entry.value} points, officially {race.totals[player]}")
        if entry.rank != rank:
            raise OffTrackError(f"{where}: {player} is at rank {entry.rank}, officially at {rank}")
    if set(absent) != set(race.unranked):
        odd = sorted(set(absent) ^ set(race.unranked))
        raise OffTrackError(f"{where}: not ranked should be exactly those without points; the difference is {', '.join(odd)}")
    if places.total != len(ranked):
        raise OffTrackError(f"{where}: the board has {places.total} players, officially {len(ranked)} have points")
