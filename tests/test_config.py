"""`cluster.yaml`: the one that ships, and what is said about each kind of bad one."""

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from boards.policies import make_rules
from config.loading import load_cluster
from config.models import ClusterConfig, ConfigError

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
    assert cluster.shard_for_home("eu-west") == cluster.shard_for_home() == "eu-west/0"


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
        "regions.eu-west.prot is no known key (did you mean `port`?); allowed are `host`, `port`, `store` and `link`.",
    ),
    "unknown section": (
        "limits:",
        "limit:",
        "limit is no known key (did you mean `limits`?); allowed are `name`, `regions`, `shards`, `boards`, `limits` and `timing`.",
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
    "second shard of one home": (
        "\n# Boards that",
        "  eu-west/1: {home: eu-west}\n\n# Boards that",
        "shards.eu-west/1 is a second shard at home in `eu-west` beside `eu-west/0`, which is not available yet.",
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
        f"boards.{SOLO}.retention_ms must be an integer from 120000 to 9223372036854775807.",
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
