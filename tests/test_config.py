"""`cluster.yaml`: the one that ships, and what is said about each kind of bad one."""

import itertools
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from boards.errors import InvalidInput
from boards.model import Layout
from boards.policies import make_rules
from config import placing
from config.loading import load_cluster
from config.models import ClusterConfig, ConfigError
from config.placing import Place
from regions.specs import shard_specs

SHIPPED = Path(__file__).resolve().parent.parent / "cluster.yaml"
SOLO = "arena-clash:solo:S7:global"

Load = Callable[[str], ClusterConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a text as a cluster file named `bad.yaml`."""

    def load_text(text: str) -> ClusterConfig:
        file = tmp_path / "bad.yaml"
        file.write_text(text)
        return load_cluster(file)

    return load_text


@pytest.fixture
def refusal(load: Load, tmp_path: Path) -> Callable[[str, str], str]:
    """What is said when the first `old` of the shipped file becomes `new`; the folder of the file is left out."""

    def explain(old: str, new: str) -> str:
        text = SHIPPED.read_text()
        assert old in text
        with pytest.raises(ConfigError) as caught:
            load(text.replace(old, new, 1))
        return str(caught.value).replace(f"{tmp_path}/", "")

    return explain


def test_shipped_file_has_three_regions_in_order_and_a_majority_of_two() -> None:
    cluster = load_cluster(SHIPPED)
    assert [name for name, _ in cluster.regions_named] == ["eu-west", "us-east", "ap-south"]
    assert cluster.quorum == 2
    assert cluster.regions["us-east"].store.redis_url == "redis://127.0.0.1:7422/0"


def test_shipped_boards_have_the_rules_of_their_policies() -> None:
    cluster = load_cluster(SHIPPED)
    assert cluster.board_rules(SOLO) == make_rules("best_score", visibility="public")
    rules = cluster.board_rules("arena-clash:time-trial:S7:global")
    assert (rules.direction, rules.ties, rules.max_value) == ("lower", "submitted_at", 3_600_000)
    assert sorted(cluster.board_rules(board).policy for board in cluster.boards) == ["best_score", "cumulative", "fastest_time", "latest"]


def test_board_without_a_home_belongs_to_the_only_shard() -> None:
    cluster = load_cluster(SHIPPED)
    assert cluster.board_home("arena-clash:form:S7:global") == "eu-west"
    assert cluster.layout_of("arena-clash:form:S7:global") == Layout(1, ("eu-west/0",))


def test_shipped_limits_and_timing_are_the_defaults(load: Load) -> None:
    shipped = load_cluster(SHIPPED)
    short = load(SHIPPED.read_text().partition("\nlimits:")[0])
    assert (short.limits, short.timing) == (shipped.limits, shipped.timing)


BAD = {
    "number too big": ("port: 7411", "port: 70000", "regions.eu-west.port must be a whole number from 1 to 65535, not 70000."),
    "number as text": ("port: 7411", "port: '7411'", 'regions.eu-west.port must be a whole number from 1 to 65535, not "7411".'),
    "truth value as text": ("host: 127.0.0.1", "host: yes", "regions.eu-west.host must be a host name or an IP address, not true."),
    "missing": ("    port: 7411\n", "", "regions.eu-west.port is missing; it must be a whole number from 1 to 65535."),
    "unknown key": (
        "port: 7411",
        "prot: 7411",
        "regions.eu-west.prot is no known key (did you mean `port`?); allowed are `host`, `port`, `store`, `link`, "
        "`replicas`, `extra_gateways`, `nodes`, `shard_processes` and `head`.",
    ),
    "unknown section": (
        "limits:",
        "limit:",
        "limit is no known key (did you mean `limits`?); allowed are `name`, `regions`, `shards`, `boards`, `limits`, `timing` "
        "and `friends`.",
    ),
    "unknown word": (
        "policy: best_score",
        "policy: bestscore",
        f"boards.{SOLO}.policy must be `best_score`, `fastest_time`, `cumulative` or `latest`, "
        'not "bestscore" (did you mean `best_score`?).',
    ),
    "scalar for a mapping": (
        "store: {port: 7421}",
        "store: 5",
        "regions.eu-west.store must be a mapping with either `port` or `url`, not 5.",
    ),
    "region name": ("  eu-west:\n", "  EU:\n", "regions.EU must be a name of 1 to 32 characters of `a-z`, `0-9` and inner `-`."),
    "shard name": ("eu-west/0:", "eu-west:", "shards.eu-west must be a shard's name of the form `<home>/<number>`, such as `eu-west/0`."),
    "shard name of another home": ("eu-west/0:", "us-east/0:", "shards.us-east/0 must begin with its home, as in `eu-west/0`."),
    "shard without a region": (
        "{home: eu-west,",
        "{home: eu-wst,",
        "shards.eu-west/0.home must be `eu-west`, `us-east` or `ap-south`, a region of this file, not `eu-wst` (did you mean `eu-west`?).",
    ),
    "unknown acknowledgement": (
        "ack: quorum",
        "ack: async",
        'shards.eu-west/0.ack must be `quorum` or `local`, not "async".',
    ),
    "unknown answer to a loss": (
        "on_region_loss: hold",
        "on_region_loss: panic",
        'shards.eu-west/0.on_region_loss must be `hold` or `promote`, not "panic".',
    ),
    "detection within a few heartbeats": (
        "heartbeat_ms: 100",
        "heartbeat_ms: 401",
        "timing.detection_ms must be at least five times `timing.heartbeat_ms`, which is 401.",
    ),
    "unknown kind of shard": (
        "on_region_loss: hold}",
        "on_region_loss: hold, kind: pool}",
        'shards.eu-west/0.kind must be `pooled` or `dedicated`, not "pool" (did you mean `pooled`?).',
    ),
    "more shards than the home has": (
        "    ranking: unique\n",
        "    shards: 2\n",
        f"boards.{SOLO}.shards must be 1, or a list of names: "
        "pooled and at home in eu-west, with equal ack and on_region_loss, is only eu-west/0.",
    ),
    "shards that are no count and no names": (
        "    ranking: unique\n",
        "    shards: eu-west/0\n",
        f"boards.{SOLO}.shards must be a whole number of at least 1, or a list of names of shards.",
    ),
    "no shards at all": (
        "    ranking: unique\n",
        "    shards: 0\n",
        f"boards.{SOLO}.shards must be a whole number of at least 1, or a list of names of shards.",
    ),
    "shard that is none": (
        "    ranking: unique\n",
        "    shards: [eu-west/1]\n",
        f"boards.{SOLO}.shards must be shards of this cluster, eu-west/0; eu-west/1 is none.",
    ),
    "second column as a word": (
        "    ranking: unique\n",
        "    secondary: lower\n",
        f'boards.{SOLO}.secondary must be a mapping with `direction`, not "lower".',
    ),
    "second column without a direction that exists": (
        "    ranking: unique\n",
        "    secondary: {direction: down}\n",
        f'boards.{SOLO}.secondary.direction must be `higher` or `lower`, not "down".',
    ),
    "second column of a sum": (
        "    policy: cumulative\n",
        "    policy: cumulative\n    secondary: {direction: lower}\n",
        "boards.arena-clash:cumulative:S7:global.secondary must be left out on cumulative boards: a sum has no second column.",
    ),
    "board id": (
        "arena-clash:form:S7:global",
        "arena:form",
        "boards.arena:form must be game:mode:season:scope, four parts of lower-case letters, digits, '.', '_' and '-', "
        "where the season may hold capitals.",
    ),
    "board without a shard": (
        "    home: eu-west\n",
        "    home: us-east\n",
        f"boards.{SOLO}.home must be the home of a shard, which is only `eu-west`, not `us-east`.",
    ),
    "board with two possible homes": (
        "\n# Boards that",
        "  us-east/0: {home: us-east}\n\n# Boards that",
        "boards.arena-clash:cumulative:S7:global.home is missing; it must be `eu-west` or `us-east`, the homes of the shards.",
    ),
    "publish interval": (
        "publish_interval_ms: 250",
        "publish_interval_ms: 20",
        f"boards.{SOLO}.publish_interval_ms must be a whole number from 50 to 1000, not 20.",
    ),
    "retention": (
        "retention_ms: 120000",
        "retention_ms: 119999",
        f"boards.{SOLO}.retention_ms must be an integer from 120000 to 31622400000.",
    ),
    "rule not for this policy": (
        "direction: higher",
        "max_value: 4",
        "boards.arena-clash:form:S7:global.max_value must be left out, except on fastest_time boards.",
    ),
    "store without an address": (
        "store: {port: 7421}",
        "store: {}",
        "regions.eu-west.store must have either `port`, for the embedded store, or `url`, not both or neither.",
    ),
    "back-off upside down": (
        "backoff_max_ms: 30000",
        "backoff_max_ms: 100",
        "timing.backoff_max_ms must be at least `timing.backoff_min_ms`, which is 200.",
    ),
    "key given twice": (
        "name: laurel-local",
        "name: a\nname: b",
        "the file is not valid YAML at line 5, column 1: the key `name` is given twice in one mapping.",
    ),
    "key that is no text": (
        "name: laurel-local",
        "1: 2",
        "the file is not valid YAML at line 4, column 1: the key 1 must be text: put it in quotes.",
    ),
}


@pytest.mark.parametrize(("old", "new", "said"), BAD.values(), ids=BAD)
def test_bad_file_gets_one_sentence_with_file_path_and_what_is_allowed(
    refusal: Callable[[str, str], str], old: str, new: str, said: str
) -> None:
    assert refusal(old, new) == f"bad.yaml: {said}"


#: Two pools and a dedicated shard at one home, a shard at another.
SHARDS = """
  eu-west/0: {home: eu-west}
  us-east/0: {home: us-east}
  eu-west/1: {home: eu-west, ack: local, on_region_loss: promote}
  eu-west/2: {home: eu-west}
  eu-west/3: {home: eu-west, kind: dedicated}
  eu-west/4: {home: eu-west, kind: dedicated, ack: local}
  eu-west/5: {home: eu-west}
"""


def spread(load: Load, lines: str) -> ClusterConfig:
    """The shipped file with those shards, and one board that has these lines of its own."""
    head, _, rest = SHIPPED.read_text().partition("\nshards:\n")
    board = f'boards:\n  "{SOLO}":\n    policy: best_score\n' + "".join(f"    {line}\n" for line in lines.splitlines())
    return load(f"{head}\nshards:{SHARDS}{board}{rest[rest.index(chr(10) + 'limits:') :]}")


PLACES = {
    "nothing said: the first pooled one at home": ("home: eu-west", ("eu-west/0",)),
    "a count: the first pooled ones that are alike, in order": ("home: eu-west\nshards: 3", ("eu-west/0", "eu-west/2", "eu-west/5")),
    "names, in the order given": ("home: eu-west\nshards: [eu-west/5, eu-west/0]", ("eu-west/5", "eu-west/0")),
    "names say the home": ("shards: [us-east/0]", ("us-east/0",)),
    "a dedicated one by its name": ("shards: [eu-west/3, eu-west/0]", ("eu-west/3", "eu-west/0")),
    "another promise by name": ("shards: [eu-west/1]", ("eu-west/1",)),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "shards"), PLACES.values(), ids=PLACES)
def test_board_lives_on(load: Load, lines: str, shards: tuple[str, ...]) -> None:
    cluster = spread(load, lines)
    assert cluster.layout_of(SOLO) == Layout(1, shards)
    assert cluster.board_home(SOLO) == cluster.shards[shards[0]].home


MISPLACED = {
    "a count above the pool": (
        "home: eu-west\nshards: 4",
        "shards must be a whole number from 1 to 3, or a list of names: pooled and at home in eu-west, with equal ack and on_region_loss, "
        "are eu-west/0, eu-west/2, eu-west/5.",
    ),
    "shards of two homes": (
        "shards: [eu-west/0, us-east/0]",
        "shards must be shards of one home; eu-west/0 is at home in eu-west, us-east/0 in us-east.",
    ),
    "shards of two promises": (
        "shards: [eu-west/3, eu-west/4]",
        "shards must be shards that agree in ack and on_region_loss; eu-west/3 and eu-west/4 do not.",
    ),
    "one shard twice": ("shards: [eu-west/0, eu-west/0]", "shards must be a list of one shard or more, none of them twice."),
    "a home that is another's": ("home: us-east\nshards: [eu-west/0]", "shards must be shards at home in us-east; eu-west/0 is not."),
    "dense ranks over several": (
        "home: eu-west\nshards: 2\nranking: dense",
        "ranking must be unique or competition on a board of 2 shards.",
    ),
    "a count without a home": ("shards: 2", "home is missing; it must be `eu-west` or `us-east`, the homes of the shards."),
}


@pytest.mark.parametrize(("lines", "said"), MISPLACED.values(), ids=MISPLACED)
def test_place_that_cannot_be_is_refused_by_its_key(load: Load, tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spread(load, lines)
    assert str(caught.value).replace(f"{tmp_path}/", "") == f"bad.yaml: boards.{SOLO}.{said}"


def test_dense_ranks_on_one_shard_are_allowed(load: Load) -> None:
    assert spread(load, "home: eu-west\nranking: dense").board_rules(SOLO).ranking == "dense"


def test_second_column_is_a_rule(load: Load) -> None:
    rules = spread(load, "home: eu-west\nsecondary: {direction: lower}").board_rules(SOLO)
    assert (rules.direction, rules.secondary) == ("higher", "lower")


def test_shard_gets_the_boards_that_it_leads_with_their_layouts(load: Load, tmp_path: Path) -> None:
    cluster = spread(load, "shards: [eu-west/2, eu-west/0]")
    boards = {spec.shard: spec.boards for spec in shard_specs(cluster, "us-east", tmp_path)}
    assert boards.pop("eu-west/2") == {SOLO: (cluster.board_rules(SOLO), Layout(1, ("eu-west/2", "eu-west/0")))}
    assert not any(boards.values())


# Boards that are created at run time


POOL = {f"eu-west/{n}": Place("eu-west", "quorum", "hold") for n in range(5)}
IDS = [f"arena:mode-{n}:S1:global" for n in range(2000)]


def test_hash_spreads_boards_evenly_over_the_pool() -> None:
    counts = Counter(placing.by_hash(POOL, "eu-west", board)[0] for board in IDS)
    assert set(counts) == set(POOL)
    assert all(320 < count < 480 for count in counts.values())  # 400 each, more than four deviations of 17.9 away


def test_shard_more_draws_its_part_and_moves_no_other_choice() -> None:
    more = {**POOL, "eu-west/5": Place("eu-west", "quorum", "hold")}
    changed = [board for board in IDS if placing.by_hash(POOL, "eu-west", board) != placing.by_hash(more, "eu-west", board)]
    assert {placing.by_hash(more, "eu-west", board)[0] for board in changed} == {"eu-west/5"}
    assert 260 < len(changed) < 410


def test_hash_leaves_dedicated_and_unlike_shards_out() -> None:
    places = {
        "eu-west/0": Place("eu-west", "quorum", "hold"),
        "eu-west/1": Place("eu-west", "quorum", "hold", pooled=False),
        "eu-west/2": Place("eu-west", "local", "hold"),
        "us-east/0": Place("us-east", "quorum", "hold"),
    }
    assert {placing.by_hash(places, "eu-west", board) for board in IDS} == {("eu-west/0",)}
    with pytest.raises(InvalidInput, match=r"^shards must be 1, or a list of names"):
        placing.by_hash(places, "eu-west", IDS[0], 2)
    with pytest.raises(InvalidInput, match=r"no pooled shard is at home in ap-south"):
        placing.by_hash(places, "ap-south", IDS[0])


def test_spread_board_has_the_lead_it_would_have_alone() -> None:
    for board in IDS[:50]:
        names = placing.by_hash(POOL, "eu-west", board, 3)
        assert len(set(names)) == 3
        assert names[:1] == placing.by_hash(POOL, "eu-west", board)


def test_reshard_keeps_the_shards_that_it_can() -> None:
    dedicated = {**POOL, "eu-west/9": Place("eu-west", "quorum", "hold", pooled=False)}
    four = placing.for_reshard(dedicated, IDS[0], ("eu-west/3", "eu-west/1"), 4)
    assert four[:2] == ("eu-west/3", "eu-west/1")
    assert len(set(four)) == 4
    assert placing.for_reshard(dedicated, IDS[0], four, 1) == ("eu-west/3",)
    assert "eu-west/9" not in placing.for_reshard(dedicated, IDS[0], ("eu-west/9",), 5)


ADDRESSES = {
    "two gateways": ("port: 7412", "port: 7411", "regions.us-east.port", "regions.eu-west.port"),
    "link of another region (LB-121)": ("port: 7432", "port: 7431", "regions.us-east.link.port", "regions.eu-west.link.port"),
    "link at another's gateway": ("port: 7432", "port: 7411", "regions.us-east.link.port", "regions.eu-west.port"),
    "link at its own gateway": ("port: 7431", "port: 7411", "regions.eu-west.link.port", "regions.eu-west.port"),
    "store by URL is another's": (
        "{port: 7421}",
        "{url: 'redis://localhost:7422'}",
        "regions.us-east.store.port",
        "regions.eu-west.store.url",
    ),
}


@pytest.mark.parametrize(("old", "new", "second", "first"), ADDRESSES.values(), ids=ADDRESSES)
def test_no_two_parts_share_an_address(refusal: Callable[[str, str], str], old: str, new: str, second: str, first: str) -> None:
    said = refusal(old, new)
    assert said.startswith(f"bad.yaml: {second} must be an address of its own: ")
    assert said.endswith(f" is already `{first}`.")


def test_same_port_on_another_machine_is_another_address(load: Load) -> None:
    text = SHIPPED.read_text()
    for n, old in enumerate(("7411", "7412", "7413"), start=1):
        text = text.replace(f"host: 127.0.0.1\n    port: {old}", f"host: 10.0.0.{n}\n    port: 7400", 1)
        text = text.replace(f"{{host: 127.0.0.1, port: 743{n}}}", f"{{host: 10.0.0.{n}, port: 7430}}")
        text = text.replace(f"store: {{port: 742{n}}}", "store: {port: 7420}")
    assert {region.port for region in load(text).regions.values()} == {7400}


def test_link_must_be_reachable(refusal: Callable[[str, str], str]) -> None:
    said = refusal("link: {host: 127.0.0.1", "link: {host: 0.0.0.0")
    assert said == "bad.yaml: regions.eu-west.link.host must be an address where other regions reach this one, not `0.0.0.0`."


def test_password_of_a_store_is_never_repeated(load: Load, refusal: Callable[[str, str], str]) -> None:
    assert "hunter2" not in refusal("{port: 7421}", "{url: 'http://:hunter2@store'}")
    cluster = load(SHIPPED.read_text().replace("{port: 7421}", "{url: 'redis://:hunter2@store:6379/0'}"))
    assert "hunter2" not in repr(cluster)
    assert not cluster.regions["eu-west"].store.embedded


@pytest.mark.parametrize("text", ["", "- a list", "just text", "name: [open", "name:\t- :", "name: \x07"])
def test_text_that_is_no_mapping_gets_one_line(load: Load, text: str) -> None:
    with pytest.raises(ConfigError, match=r"bad\.yaml: the file (is not valid YAML|must be a mapping with)[^\n]*\.$"):
        load(text)


def test_missing_file_and_folder_and_binary_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: there is no such file; name one with `-c`\.$"):
        load_cluster(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"the file cannot be read: Is a directory\.$"):
        load_cluster(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"name: \xff")
    with pytest.raises(ConfigError, match=r"binary\.yaml: the file is not UTF-8 text \(byte 7\)\.$"):
        load_cluster(binary)


def test_merge_key_may_be_overridden(load: Load) -> None:
    text = (
        SHIPPED.read_text()
        .replace(f'"{SOLO}":\n    policy', f'"{SOLO}": &solo\n    policy')
        .replace("\nlimits:", '  "arena-clash:duo:S7:global":\n    <<: *solo\n    ranking: dense\n\nlimits:', 1)
    )
    rules = load(text).board_rules("arena-clash:duo:S7:global")
    assert (rules.policy, rules.ranking) == ("best_score", "dense")


def test_first_region_alone_is_a_cluster_with_a_quorum_of_one() -> None:
    one = load_cluster(SHIPPED).restrict(1)
    assert list(one.regions) == ["eu-west"]
    assert one.quorum == 1


@pytest.mark.parametrize("count", [0, 4, -1])
def test_no_more_regions_than_the_file_has(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"^regions has 3 of them, so 1 to 3 can be used, not {count}\.$"):
        load_cluster(SHIPPED).restrict(count)


def test_restriction_never_drops_a_shard(load: Load) -> None:
    text = SHIPPED.read_text().replace("eu-west/0: {home: eu-west,", "us-east/0: {home: us-east,").replace("    home: eu-west\n", "")
    with pytest.raises(ConfigError, match=r"^shards\.us-east/0\.home is `us-east`, which is not among the first 1 regions"):
        load(text).restrict(1)


def test_relocation_moves_every_port_in_order_and_nothing_else() -> None:
    cluster = load_cluster(SHIPPED)
    moved = cluster.relocate(itertools.count(9001))
    ports = [(region.port, region.store.port, region.link.port) for region in moved.regions.values()]
    assert ports == [(9001, 9002, 9003), (9004, 9005, 9006), (9007, 9008, 9009)]
    assert (moved.boards, moved.limits, list(moved.regions)) == (cluster.boards, cluster.limits, list(cluster.regions))


def test_configuration_is_frozen_and_survives_pickling() -> None:
    cluster = load_cluster(SHIPPED)
    with pytest.raises(ValidationError, match="frozen"):
        cluster.name = "other"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_error_survives_pickling_with_its_text() -> None:
    error = ConfigError("is missing", path="name", file="a.yaml")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a.yaml: name is missing."
    assert (error.code, error.definite) == ("config", True)


def test_unknown_board_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"is no board of this file \(did you mean `arena-clash:solo:S7:global`\?\)\.$"):
        load_cluster(SHIPPED).board_rules("arena-clash:solos:S7:global")
