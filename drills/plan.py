"""What a drill's YAML may say: steps, canary traffic, what it makes unavailable, and what it must achieve.

Each field's `description` is the end of the sentence "... must be", which `drills.loading` puts into its errors.
Regions are named by their part: `owner` owns the shard when the drill begins, `successor` and `third` are the
others in the order of the cluster file.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["owner", "successor", "third"]
Side = Literal["owner", "successor", "third", "others"]

#: Upper bounds in ms of what has none of its own.
COMMAND_MS, SWITCH_MS, AUTOMATIC_MS = 12_000, 3000, 30_000
#: After the steps: faults put back, health, authority back, the last events, the proof.
FINISH_MS = 100_000
STALL_MAX_MS = 10_000


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


_Duration = Annotated[int, Field(ge=1, le=120_000, description="a whole number of milliseconds from 1 to 120000")]
_RoleField = Annotated[Role, Field(description="`owner`, `successor` or `third`")]
_SideField = Annotated[Side, Field(description="`owner`, `successor`, `third` or `others`")]
_DirectionField = Annotated[Literal["in", "out", "both"], Field(description="`in`, `out` or `both`, as seen from `region`")]


class WaitStep(_Section):
    """Let the canary run."""

    do: Literal["wait"]
    for_ms: _Duration

    def bound_ms(self) -> int:
        """At most so long."""
        return self.for_ms

    def words(self) -> str:
        """For people."""
        return f"watch for {self.for_ms / 1000:g} s"


class FailoverStep(_Section):
    """Move authority. With `unless_automatic`, a shard that promotes by itself is given the time to do so."""

    do: Literal["failover"]
    to: _RoleField
    force: bool = Field(False, description="`true` or `false`")
    unless_automatic: bool = Field(False, description="`true` or `false`")

    def bound_ms(self) -> int:
        """At most so long."""
        return COMMAND_MS + (AUTOMATIC_MS if self.unless_automatic else 0)

    def words(self) -> str:
        """For people."""
        verb = f"force authority to the {self.to}" if self.force else f"hand authority over to the {self.to}"
        return f"{verb}{', unless it moves by itself' if self.unless_automatic else ''}"


class CutStep(_Section):
    """Drop messages between `region` and other regions on the link switch."""

    do: Literal["cut"]
    region: _RoleField
    peer: _SideField = Field(alias="from")
    direction: _DirectionField = "both"
    for_ms: _Duration

    def bound_ms(self) -> int:
        """At most so long."""
        return SWITCH_MS

    def words(self) -> str:
        """For people."""
        way = {"both": "", "in": ", so that it hears nothing", "out": ", so that it is not heard"}[self.direction]
        return f"cut the {self.region} off from the {self.peer}{way} (ends by itself after {self.for_ms / 1000:g} s)"


class SlowStep(_Section):
    """Delay messages between `region` and other regions on the link switch."""

    do: Literal["slow"]
    region: _RoleField
    peer: _SideField = Field(alias="from")
    direction: _DirectionField = "both"
    delay_ms: int = Field(ge=1, le=5000, description="a whole number of milliseconds from 1 to 5000")
    for_ms: _Duration

    def bound_ms(self) -> int:
        """At most so long."""
        return SWITCH_MS

    def words(self) -> str:
        """For people."""
        return f"delay each message between {self.region} and {self.peer} by {self.delay_ms} ms (for {self.for_ms / 1000:g} s at most)"


class StallStep(_Section):
    """The region's store answers nobody; it goes on by itself."""

    do: Literal["stall"]
    region: _RoleField
    for_ms: int = Field(ge=1, le=STALL_MAX_MS, description=f"a whole number of milliseconds from 1 to {STALL_MAX_MS}")

    def bound_ms(self) -> int:
        """At most so long."""
        return SWITCH_MS

    def words(self) -> str:
        """For people."""
        return f"stall the store of the {self.region} for {self.for_ms / 1000:g} s"


class HealStep(_Section):
    """Take back every link fault of this drill."""

    do: Literal["heal"]

    def bound_ms(self) -> int:
        """At most so long."""
        return SWITCH_MS

    def words(self) -> str:
        """For people."""
        return "put all links back"


class FollowStep(_Section):
    """Wait until `region` follows the newest epoch and serves no writes of its own."""

    do: Literal["follow"]
    region: _RoleField
    within_ms: _Duration

    def bound_ms(self) -> int:
        """At most so long."""
        return self.within_ms

    def words(self) -> str:
        """For people."""
        return f"wait until the {self.region} has stepped down and follows (at most {self.within_ms / 1000:g} s)"


class SettleStep(_Section):
    """Wait until every region is well and level."""

    do: Literal["settle"]
    within_ms: _Duration

    def bound_ms(self) -> int:
        """At most so long."""
        return self.within_ms

    def words(self) -> str:
        """For people."""
        return f"wait until every region is well and level (at most {self.within_ms / 1000:g} s)"


Step = WaitStep | FailoverStep | CutStep | SlowStep | StallStep | HealStep | FollowStep | SettleStep
STEPS: dict[str, type[Step]] = {
    "wait": WaitStep,
    "failover": FailoverStep,
    "cut": CutStep,
    "slow": SlowStep,
    "stall": StallStep,
    "heal": HealStep,
    "follow": FollowStep,
    "settle": SettleStep,
}


class Traffic(_Section):
    """Canary events and reads: one of each from every region each `every_ms`.

    With `redeliver`, each event is sent so many times more with the same id, through other regions and at once;
    with `corrections`, every third event lowers the total, and every third is a score, half of them below the best.
    """

    every_ms: int = Field(100, ge=20, le=1000, description="a whole number of milliseconds from 20 to 1000")
    redeliver: int = Field(0, ge=0, le=10, description="a whole number from 0 to 10")
    corrections: bool = Field(False, description="`true` or `false`")


class Unavailable(_Section):
    """What players notice."""

    what: str = Field(min_length=1, description="text")
    at_most_ms: int = Field(ge=0, le=600_000, description="a whole number of milliseconds from 0 to 600000")


_Limit = Annotated[int | None, Field(ge=0, description="a whole number of milliseconds")]


class Objectives(_Section):
    """What must hold for the drill to be met; what is None is told and not judged.

    Always judged besides: nothing acknowledged by a deposed owner, totals exact, nothing counted twice, every event resolved.
    """

    #: Longest time without any acknowledgement around a planned handover.
    planned_pause_ms: _Limit = None
    #: From the operator's command to the first write acknowledged in the new epoch.
    forced_first_write_ms: _Limit = None
    #: The same in a `local` shard, whose new owner waits until the old one's lease is over.
    forced_first_write_local_ms: _Limit = None
    #: From the fault to the first write acknowledged in the epoch that began by itself.
    automatic_first_write_ms: _Limit = None
    #: Longest time without any acknowledgement in the whole drill.
    write_pause_ms: _Limit = None
    #: Longest wait until every region was well again.
    settle_ms: _Limit = None
    reads_percent: float = Field(99.9, ge=0, le=100, description="a number from 0 to 100")
    lost: int = Field(0, ge=0, description="a whole number of events")


class Plan(_Section):
    """One drill."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$", description="a name of `a-z`, `0-9` and inner `-`")
    summary: str = Field(min_length=1, max_length=400, description="text of 1 to 400 characters")
    unavailable: list[Unavailable] = Field(default=[], description="a list of mappings with `what` and `at_most_ms`")
    traffic: Traffic = Field(Traffic(), description="a mapping with `every_ms`, `redeliver` and `corrections`")
    before_ms: _Duration = 2000
    after_ms: _Duration = 1500
    steps: list[Annotated[Step, Field(discriminator="do")]] = Field(
        min_length=1, max_length=50, description="a list of 1 to 50 steps, each a mapping with `do`"
    )
    objectives: Objectives = Field(Objectives(), description="a mapping of limits")

    @property
    def max_ms(self) -> int:
        """The whole drill takes no longer than this, its finish included."""
        return self.before_ms + sum(step.bound_ms() for step in self.steps) + self.after_ms + FINISH_MS

    @property
    def fewest_regions(self) -> int:
        """How many regions it takes: without one of them, or with one of them slow, there must be a majority."""
        faults = any(isinstance(step, (CutStep, SlowStep, StallStep)) for step in self.steps)
        third = any("third" in (getattr(step, "region", ""), getattr(step, "to", "")) for step in self.steps)
        return 3 if faults or third else 2
