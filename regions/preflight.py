"""What is compared before a region starts: its configuration with what its data on this machine was written with.

Reads the region's ledgers, which no process may have open meanwhile, and the list of regions kept beside them. Both are
hints: where the disk says nothing (a fresh region, a ledger in doubt), the region starts and the shard's authority compares
again, against its journal.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from boards.model import BoardRules
from boards.rule_changes import FIXED, KEPT, changed
from config.models import ClusterConfig, ConfigError, join_path, listed
from ledger.lmdb_ledger import stored_boards
from regions.region_paths import RegionPaths


def check(config: ClusterConfig, region: str, data_dir: Path, *, file: str) -> list[str]:
    """Compare; return sentences about rules that the data keeps although the file says otherwise.

    Raises `ConfigError` for a board whose data was written under other rules or in another shard, and for a cluster of
    other regions than those that wrote the data. Cost: one read of the list of boards for each shard.
    """
    paths = RegionPaths(data_dir, region)
    written_by = members(paths)
    if written_by is not None and set(written_by) != set(config.regions):
        raise ConfigError(
            f"must be {listed(written_by, last='and')}, the regions that wrote the data in {paths.root}: members cannot be changed yet, "
            "so start those, or name another --data-dir",
            path="regions",
            file=file,
        )
    warnings: list[str] = []
    for shard, board_id, written in _stored(config, paths):
        if board_id in config.boards:
            home = config.shards[shard].home
            if config.board_home(board_id) != home:
                problem = f"must be `{home}`, where its data is, not `{config.board_home(board_id)}`: a board cannot change its shard yet"
                raise ConfigError(problem, path=join_path("boards", board_id, "home"), file=file)
            warnings += _compare(board_id, written, config.board_rules(board_id), paths.root, file)
    return warnings


def members(paths: RegionPaths) -> list[str] | None:
    """Regions of the cluster that this region's data belongs to; None where that is not known here."""
    try:
        return msgspec.json.decode((paths.root / "members.json").read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError):
        return None


def remember_members(config: ClusterConfig, regions: Iterable[str], data_dir: Path) -> None:
    """Note, beside the data of these regions, the regions of the cluster. To be called once it has started."""
    for region in regions:
        paths = RegionPaths(data_dir, region)
        if members(paths) is None:
            draft = paths.root / "members.json.new"
            draft.write_bytes(msgspec.json.encode(list(config.regions)))
            draft.replace(paths.root / "members.json")


def _stored(config: ClusterConfig, paths: RegionPaths) -> Iterator[tuple[str, str, BoardRules]]:
    """(shard, board id, rules) of every ledger of this region, those that an actor opened beside the first included."""
    for shard in config.shards:
        first = paths.ledger(shard)
        for place in (first, *sorted(first.parent.glob(f"{first.name}.*"))):
            for board_id, rules in stored_boards(place).items():
                yield shard, board_id, rules


def _compare(board_id: str, written: BoardRules, wanted: BoardRules, root: Path, file: str) -> list[str]:
    for rule in changed(written, wanted, FIXED):
        problem = (
            f"must be {_word(written, rule)}, as the data in {root} was written with, not {_word(wanted, rule)}: "
            "put it back, or give the board another id"
        )
        raise ConfigError(problem, path=join_path("boards", board_id, rule), file=file)
    return [
        f"{join_path('boards', board_id, rule)} stays {_word(written, rule)}, which the board was created with, "
        f"whatever {file} says ({_word(wanted, rule)})."
        for rule in changed(written, wanted, KEPT)
    ]


def _word(rules: BoardRules, rule: str) -> str:
    value = getattr(rules, rule)
    return "left out" if value is None else f"`{value}`"
