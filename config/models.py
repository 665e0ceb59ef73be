"""What `cluster.yaml` may say.

Each field's `description` is the end of the sentence "... must be", which `config.loading` puts into its
errors. What one field alone cannot know (a home that is no region, an address given twice) is checked
after the fields and raises `ConfigError` with the path of the key at fault.

Errors:
    ConfigError   the file, or what was asked of it, is wrong. Definite: mend what the text names.
"""

import difflib
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, model_validator
from pydantic_core import PydanticCustomError

from boards.errors import InvalidInput
from boards.ids import check_board_id
from boards.model import BoardRules, Direction, Layout, Policy, Ranking, Ties, Visibility
from boards.policies import make_rules
from config import placing

LOOPBACK = "127.0.0.1"
#: Hosts that all mean "this machine" when two addresses are compared.
_LOCAL_HOSTS = {"localhost", "0.0.0.0", "::", "::1"}
_WILDCARDS = {"0.0.0.0", "::"}


class ConfigError(Exception):
    """A sentence for whoever wrote the file: which file, the path of the bad key, and what is allowed."""

    code: ClassVar[str] = "config"
    definite: ClassVar[bool] = True

    def __init__(self, problem: str, *, path: str = "", file: str = "") -> None:
        super().__init__(problem, path, file)
        self.problem = problem
        #: Path of the bad key, such as `regions.eu-west.port`; empty when the file as a whole is at fault.
        self.path = path
        self.file = file

    def __str__(self) -> str:
        place = f"{self.file}: " if self.file else ""
        return f"{place}{self.path} {self.problem}." if self.path else f"{place}{self.problem}."

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_error, (self.problem, self.path, self.file)

    def in_file(self, file: str) -> "ConfigError":
        """The same error, naming `file`."""
        return ConfigError(self.problem, path=self.path, file=file)


def _rebuild_error(problem: str, path: str, file: str) -> ConfigError:
    return ConfigError(problem, path=path, file=file)


def join_path(*keys: str | int) -> str:
    """`regions.eu-west.port`; a key that holds a dot or a space, or none at all, is quoted."""
    return ".".join(f'"{key}"' if not str(key) or "." in str(key) or " " in str(key) else str(key) for key in keys)


def suggest(word: str, known: Iterable[str]) -> str:
    """ " (did you mean `port`?)", or nothing when no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean `{near[0]}`?)" if near else ""


def listed(words: Iterable[str], *, last: str = "or") -> str:
    """The words for people: `a`, `b` or `c`."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


def _redis_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"redis", "rediss"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        # The text may hold a password, so the message does not repeat it.
        raise PydanticCustomError("redis_url", "must be a store's address of the form `redis://host:port/0`, or `rediss://` for TLS")
    return url


Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
        description="a name of 1 to 32 characters of `a-z`, `0-9` and inner `-`",
    ),
]
ShardName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9-]+/(0|[1-9][0-9]{0,3})$",
        description="a shard's name of the form `<home>/<number>`, such as `eu-west/0`",
    ),
]
BoardId = Annotated[str, AfterValidator(check_board_id)]
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9.:_-]{1,253}$", description="a host name or an IP address")]
Port = Annotated[int, Field(ge=1, le=65535, description="a whole number from 1 to 65535")]
Ack = Literal["quorum", "local"]
OnRegionLoss = Literal["hold", "promote"]
Kind = Literal["pooled", "dedicated"]


def _wish(raw: Any) -> int | tuple[str, ...]:
    try:
        return placing.read_wish(raw)
    except InvalidInput as error:
        raise PydanticCustomError("shards", "must be {allowed}", {"allowed": error.allowed}) from error


#: How many shards a board is spread over, or which.
Wish = Annotated[int | tuple[str, ...], PlainValidator(_wish)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class StoreConfig(_Section):
    """The region's Redis-protocol store: an embedded one on the region's own machine, or one by URL."""

    port: Port | None = Field(None, description="a whole number from 1 to 65535")
    url: Annotated[str, AfterValidator(_redis_url)] | None = Field(
        None, repr=False, description="a store's address of the form `redis://host:port/0`, or `rediss://` for TLS"
    )

    @property
    def embedded(self) -> bool:
        """Whether the region starts, probes and restarts the store itself."""
        return self.url is None

    @property
    def redis_url(self) -> str:
        """Where to connect; may hold a password, so do not log it."""
        return self.url if self.url is not None else f"redis://{LOOPBACK}:{self.port}/0"


class LinkConfig(_Section):
    """Where the other regions reach this one."""

    host: Host
    port: Port


class GatewayConfig(_Section):
    """Where a further gateway of a region listens; no `host` means the region's own."""

    host: Host | None = None
    port: Port


class HeadConfig(_Section):
    """Where nodes on other machines find the head of the region's Ray cluster: an IP address of its machine, and a port there."""

    host: Host
    port: Port


class RegionConfig(_Section):
    """One region; `host` and `port` are its first gateway's, which is also the one that has the link address."""

    host: Host = LOOPBACK
    port: Port
    store: StoreConfig = Field(description="a mapping with either `port` or `url`")
    link: LinkConfig = Field(description="a mapping with `host` and `port`")
    replicas: int = Field(1, ge=1, le=16, description="a whole number from 1 to 16")
    extra_gateways: tuple[GatewayConfig, ...] = Field(
        (), max_length=15, strict=False, description="a list of up to 15 mappings with `port`, and `host` if it is not the region's"
    )
    nodes: int = Field(1, ge=1, le=16, description="a whole number from 1 to 16")
    #: Processes that the pooled shards share; None: one on each node.
    shard_processes: int | None = Field(None, ge=1, le=64, description="a whole number from 1 to 64")
    #: None: all nodes are started on one machine.
    head: HeadConfig | None = Field(None, description="a mapping with `host` and `port`")

    @property
    def gateways(self) -> list[tuple[str, int]]:
        """(host, port) of each gateway, the first one's first."""
        return [(self.host, self.port), *((extra.host or self.host, extra.port) for extra in self.extra_gateways)]


class ShardConfig(_Section):
    """One journal and its owner. `home` decides at genesis only; afterwards the journal says who owns it."""

    home: Name
    ack: Ack = Field("quorum", description="`quorum` or `local`")
    on_region_loss: OnRegionLoss = Field("hold", description="`hold` or `promote`")
    #: A dedicated shard takes those boards alone that name it.
    kind: Kind = Field("pooled", description="`pooled` or `dedicated`")


class SecondaryConfig(_Section):
    """The second column, which decides between equal values."""

    direction: Direction


class BoardConfig(_Section):
    """A board that exists from genesis on. What is None is decided by the policy, or by the shards that there are.

    `boards.policies.make_rules` checks what the values may be and whether they fit together; here are their types.
    """

    policy: Policy
    direction: Direction | None = None
    ties: Ties | None = None
    ranking: Ranking = "unique"
    decimals: int = Field(0, description="a whole number of fraction digits")
    max_value: int | None = Field(None, description="a whole number, in units of the last decimal")
    max_age_ms: int | None = Field(None, description="a whole number of milliseconds")
    home: Name | None = Field(None, description="the name of a region")
    shards: Wish | None = None
    secondary: SecondaryConfig | None = None
    visibility: Visibility = "private"
    publish_interval_ms: int = Field(250, ge=50, le=1000, description="a whole number from 50 to 1000")
    retention_ms: int = Field(120_000, description="a whole number from 120000 to 31622400000, a year")

    def rules(self) -> BoardRules:
        """The rules that the journal gets. Raises `boards.errors.InvalidInput` where the parts do not fit together."""
        return make_rules(
            self.policy,
            direction=self.direction,
            ties=self.ties,
            ranking=self.ranking,
            decimals=self.decimals,
            max_value=self.max_value,
            max_age_ms=self.max_age_ms,
            visibility=self.visibility,
            publish_interval_ms=self.publish_interval_ms,
            retention_ms=self.retention_ms,
            secondary=self.secondary.direction if self.secondary else None,
        )


def _friends_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        path = parts.path + "?" + parts.query
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and "{player}" in path
        good = good and not set("{} \t\r\n") & set(url.replace("{game}", "").replace("{player}", ""))
        good = good and "{" not in parts.netloc and not parts.fragment
    except ValueError:
        good = False
    if not good:
        # The text may hold a password, so the message does not repeat it.
        raise PydanticCustomError("friends_url", "must be an address such as `http://host/friends/{game}/{player}`, with `{player}` in it")
    return url


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise PydanticCustomError("absolute_path", "must be the absolute path of a JSON file")
    return path


class FriendsConfig(_Section):
    """Who a player's friends are: a service that is asked, or a file of this machine, read again when it has changed."""

    static: Annotated[str, AfterValidator(_absolute)] | None = Field(None, description="the absolute path of a JSON file")
    url: Annotated[str, AfterValidator(_friends_url)] | None = Field(
        None, repr=False, description="an address such as `http://host/friends/{game}/{player}`, with `{player}` in it"
    )
    timeout_ms: int = Field(300, ge=10, le=10_000, description="a whole number from 10 to 10000")
    cache_ms: int = Field(2000, ge=0, le=60_000, description="a whole number from 0 to 60000")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.static is None) == (self.url is None):
            raise ConfigError("must have either `url`, for a service, or `static`, for a file, not both or neither", path="friends")
        for name in ("timeout_ms", "cache_ms"):
            # The default is let pass: a configuration that was written out holds it.
            if self.static is not None and getattr(self, name) != type(self).model_fields[name].default:
                raise ConfigError("is for a service with a `url` only", path=join_path("friends", name))
        return self


class Limits(_Section):
    """Bounds on what one request, and all unreplicated entries together, may take."""

    max_batch_events: int = Field(1000, ge=1, le=1000, description="a whole number from 1 to 1000")
    max_body_bytes: int = Field(1_048_576, ge=1024, le=67_108_864, description="a whole number from 1024 to 67108864")
    unreplicated_entries: int = Field(2000, ge=1, description="a whole number of at least 1")
    unreplicated_bytes: int = Field(67_108_864, ge=1_048_576, description="a whole number of at least 1048576")
    unreplicated_ms: int = Field(10_000, ge=100, description="a whole number of at least 100")
    ack_timeout_ms: int = Field(5000, ge=100, le=60_000, description="a whole number from 100 to 60000")
    group_commit_ms: int = Field(80, ge=0, le=200, description="a whole number from 0 to 200")


class Timing(_Section):
    """How often to speak and how long to wait; none of it decides safety."""

    heartbeat_ms: int = Field(100, ge=10, le=5000, description="a whole number from 10 to 5000")
    seal_restart_ms: int = Field(1000, ge=100, le=60_000, description="a whole number from 100 to 60000")
    probe_timeout_ms: int = Field(1000, ge=50, le=60_000, description="a whole number from 50 to 60000")
    handover_timeout_ms: int = Field(10_000, ge=500, le=120_000, description="a whole number from 500 to 120000")
    backoff_min_ms: int = Field(200, ge=10, le=60_000, description="a whole number from 10 to 60000")
    backoff_max_ms: int = Field(30_000, ge=10, le=600_000, description="a whole number from 10 to 600000")
    detection_ms: int = Field(2000, ge=500, le=600_000, description="a whole number from 500 to 600000")
    lease_ms: int = Field(1500, ge=300, le=60_000, description="a whole number from 300 to 60000")
    seal_grace_ms: int = Field(500, ge=0, le=60_000, description="a whole number from 0 to 60000")


class ClusterConfig(_Section):
    """A whole cluster. Dictionaries keep the order of the file, which breaks ties between regions."""

    name: Name
    regions: dict[Name, RegionConfig] = Field(min_length=1, description="a mapping of at least one region name to its addresses")
    shards: dict[ShardName, ShardConfig] = Field(min_length=1, description="a mapping of at least one shard name to its home")
    boards: dict[BoardId, BoardConfig] = Field({}, description="a mapping of board ids to their rules")
    limits: Limits = Field(Limits(), description="a mapping of limits")
    timing: Timing = Field(Timing(), description="a mapping of durations")
    friends: FriendsConfig | None = Field(None, description="a mapping with either `url` or `static`")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        _check_addresses(self.regions)
        self._check_shards()
        self._check_boards()
        if self.timing.detection_ms < 5 * self.timing.heartbeat_ms:
            problem = f"must be at least five times `timing.heartbeat_ms`, which is {self.timing.heartbeat_ms}"
            raise ConfigError(problem, path="timing.detection_ms")
        if self.timing.backoff_max_ms < self.timing.backoff_min_ms:
            problem = f"must be at least `timing.backoff_min_ms`, which is {self.timing.backoff_min_ms}"
            raise ConfigError(problem, path="timing.backoff_max_ms")
        return self

    def _check_shards(self) -> None:
        for name, shard in self.shards.items():
            if shard.home not in self.regions:
                raise ConfigError(_no_region(shard.home, self.regions), path=join_path("shards", name, "home"))
            if name.rpartition("/")[0] != shard.home:
                problem = f"must begin with its home, as in `{shard.home}/0`"
                raise ConfigError(problem, path=join_path("shards", name))

    def _check_boards(self) -> None:
        homes = placing.homes(self.places)
        for board_id, board in self.boards.items():
            if board.home is None and len(homes) > 1 and not isinstance(board.shards, tuple):
                raise ConfigError(
                    f"is missing; it must be {listed(homes)}, the homes of the shards", path=join_path("boards", board_id, "home")
                )
            if board.home is not None and board.home not in homes:
                problem = (
                    f"must be the home of a shard, which {'is only' if len(homes) == 1 else 'are'} {listed(homes)}, "
                    f"not `{board.home}`{suggest(board.home, homes)}"
                )
                raise ConfigError(problem, path=join_path("boards", board_id, "home"))
            try:
                rules = board.rules()
                placing.check_spread(rules, len(self.layout_of(board_id).shards))
            except InvalidInput as error:
                raise ConfigError(f"must be {error.allowed}", path=join_path("boards", board_id, error.field)) from error

    @property
    def places(self) -> dict[str, placing.Place]:
        """What decides which boards a shard may hold, in the order of the file."""
        return {
            name: placing.Place(shard.home, shard.ack, shard.on_region_loss, shard.kind == "pooled") for name, shard in self.shards.items()
        }

    @property
    def regions_named(self) -> tuple[tuple[str, RegionConfig], ...]:
        """(name, region) in the order of the file."""
        return tuple(self.regions.items())

    @property
    def quorum(self) -> int:
        """How many regions make a majority."""
        return len(self.regions) // 2 + 1

    def board_rules(self, board_id: str) -> BoardRules:
        """Rules of a board of this file. Raises `ConfigError` when the file has no such board."""
        return self._board(board_id).rules()

    def layout_of(self, board_id: str) -> Layout:
        """Where a board of this file is created: with how many slices, and on which shards. Later it may move."""
        board, places = self._board(board_id), self.places
        try:
            if isinstance(board.shards, tuple):
                names = placing.by_name(places, board.shards)
                home = places[names[0]].home
                if board.home not in (None, home):
                    raise InvalidInput(code="bad_rule", field="shards", allowed=f"shards at home in {board.home}; {names[0]} is not")
            else:
                names = placing.by_count(places, board.home or placing.homes(places)[0], board.shards or 1)
        except InvalidInput as error:
            raise ConfigError(f"must be {error.allowed}", path=join_path("boards", board_id, error.field)) from error
        return Layout(1, names)

    def board_home(self, board_id: str) -> str:
        """Region that should own the board when all is well."""
        return self.shards[self.layout_of(board_id).lead].home

    def _board(self, board_id: str) -> BoardConfig:
        if board_id not in self.boards:
            raise ConfigError(f"is no board of this file{suggest(board_id, self.boards)}", path=join_path("boards", board_id))
        return self.boards[board_id]

    def restrict(self, count: int) -> "ClusterConfig":
        """This cluster with its first `count` regions alone.

        Raises `ConfigError` when there are not so many, or when a shard would lose its home: a board is never left out silently.
        """
        if not 1 <= count <= len(self.regions):
            raise ConfigError(f"has {len(self.regions)} of them, so 1 to {len(self.regions)} can be used, not {count}", path="regions")
        names = list(self.regions)[:count]
        for name, shard in self.shards.items():
            if shard.home not in names:
                problem = f"is `{shard.home}`, which is not among the first {count} regions ({', '.join(names)})"
                raise ConfigError(problem, path=join_path("shards", name, "home"))
        return self.model_copy(update={"regions": {name: self.regions[name] for name in names}})

    def relocate(self, ports: Iterator[int]) -> "ClusterConfig":
        """This cluster on other ports: takes gateway, store (if embedded), link, further gateways and head of each region in turn,
        in the order of the file."""
        moved = {}
        for name, region in self.regions.items():
            gateway = next(ports)
            store = region.store.model_copy(update={"port": next(ports)}) if region.store.embedded else region.store
            link = region.link.model_copy(update={"port": next(ports)})
            extra = tuple(each.model_copy(update={"port": next(ports)}) for each in region.extra_gateways)
            head = region.head.model_copy(update={"port": next(ports)}) if region.head else None
            update = {"port": gateway, "store": store, "link": link, "extra_gateways": extra, "head": head}
            moved[name] = region.model_copy(update=update)
        _check_addresses(moved)
        return self.model_copy(update={"regions": moved})


def _no_region(name: str, regions: Iterable[str]) -> str:
    names = list(regions)
    return f"must be {listed(names)}, a region of this file, not `{name}`{suggest(name, names)}"


def _machine(host: str) -> str:
    host = host.lower()
    return LOOPBACK if host in _LOCAL_HOSTS or host.startswith("127.") else host


def _check_addresses(regions: dict[str, RegionConfig]) -> None:
    """Each address is one thing of one region: else a region forwards to itself, or two share a journal."""
    taken: dict[tuple[str, int], str] = {}
    for name, region in regions.items():
        store_path = join_path("regions", name, "store")
        if (region.store.port is None) == (region.store.url is None):
            raise ConfigError("must have either `port`, for the embedded store, or `url`, not both or neither", path=store_path)
        if region.link.host in _WILDCARDS:
            path = join_path("regions", name, "link", "host")
            raise ConfigError(f"must be an address where other regions reach this one, not `{region.link.host}`", path=path)
        if region.head is not None:
            _check_head(name, region, region.head)
        if region.store.url is not None:
            parts = urlsplit(region.store.url)
            store_at, store_path = (parts.hostname or LOOPBACK, parts.port or 6379), join_path("regions", name, "store", "url")
        else:
            store_at, store_path = (region.host, region.store.port or 0), join_path("regions", name, "store", "port")
        for host, port, path in (
            (region.host, region.port, join_path("regions", name, "port")),
            (*store_at, store_path),
            (region.link.host, region.link.port, join_path("regions", name, "link", "port")),
            *((*at, join_path("regions", name, "extra_gateways", i, "port")) for i, at in enumerate(region.gateways[1:])),
            *([(region.head.host, region.head.port, join_path("regions", name, "head", "port"))] if region.head else []),
        ):
            other = taken.setdefault((_machine(host), port), path)
            if other != path:
                raise ConfigError(f"must be an address of its own: {host}:{port} is already `{other}`", path=path)


def _check_head(name: str, region: RegionConfig, head: HeadConfig) -> None:
    """Actors on another machine must reach the head and the store, and would each take the machine's own loopback for them."""
    path = join_path("regions", name, "head")
    if region.nodes == 1:
        raise ConfigError("is for nodes on other machines, so `nodes` must be 2 or more", path=path)
    if _machine(head.host) == LOOPBACK:
        raise ConfigError(
            f"must be an address that other machines reach, not `{head.host}`", path=join_path("regions", name, "head", "host")
        )
    if region.store.embedded or _machine(urlsplit(region.store.redis_url).hostname or LOOPBACK) == LOOPBACK:
        problem = "must be a `url` that other machines reach, since the region has a `head` for nodes elsewhere"
        raise ConfigError(problem, path=join_path("regions", name, "store"))
