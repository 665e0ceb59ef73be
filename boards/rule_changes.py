"""What may differ between the rules that a board's data was written with and those of a configuration."""

from boards.model import BoardRules

#: They decide order, outcomes or what a number means: rows written under one do not hold under another.
FIXED = ("policy", "direction", "ties", "ranking", "decimals", "max_value", "max_age_ms", "secondary")
#: They decide who reads, when, and for how long; a board keeps those that it was created with.
KEPT = ("visibility", "publish_interval_ms", "retention_ms")


def changed(written: BoardRules, wanted: BoardRules, names: tuple[str, ...] = FIXED) -> list[str]:
    """Which of `names` differ, in that order: the first is the cause where one brings another along (`policy`, `direction`)."""
    return [name for name in names if getattr(written, name) != getattr(wanted, name)]
