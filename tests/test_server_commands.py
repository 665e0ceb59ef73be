"""Server commands with a launcher that starts nothing: what they write, say and refuse. No sockets, no Ray."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from boards.model import BoardRules
from boards.policies import make_rules
from config.loading import load_cluster
from config.models import ConfigError
from journal.records import BoardCreated, seal_entry
from laurel import LaurelClient, commands, main
from ledger.lmdb_ledger import LmdbLedger, stored_boards
from regions import preflight, up_command
from regions.launcher import StartError
from regions.live_table import RegionView, busiest, changes, render, rows
from regions.region_paths import RegionPaths
from regions.specs import make_keys
from regions.tokens import TokenVerifier, public_keys

BOARD = "arena-clash:solo:S7:global"
SHARD = "eu-west/0"


def shard_status(role: str = "authority", epoch: int = 1, generation: int = 17, **facts: Any) -> dict[str, Any]:
    replica = {"serving": True, "alarm": "", "boards_count": 1, "boards": {BOARD: {"generation": generation}}}
    return {"role": role, "known_epoch": epoch, "known_owner": "eu-west", "committed": 9, "tail": 9, "lag": {}, "replica": replica, **facts}


class FakeLauncher:
    """Prepares, says that all runs, and sends this process a signal after some looks."""

    made: ClassVar[list["FakeLauncher"]] = []
    states: ClassVar[Callable[[int], str]] = lambda look: "running"
    signal_at = 12

    def __init__(self, config_path: Path, data_dir: Path, regions: list[str], *, config: Any) -> None:
        self.config_path, self.names, self.config = config_path, regions, config
        self.regions = dict.fromkeys(regions, self)
        self.stopped, self.looks = False, 0
        self.data_dir = data_dir
        FakeLauncher.made.append(self)

    def __enter__(self) -> "FakeLauncher":
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped = True

    def start_all(self, prepare: Callable[[], None]) -> None:
        self.data_dir.mkdir(exist_ok=True)
        for name in self.names:
            (self.data_dir / name).mkdir(exist_ok=True)
        prepare()

    def report(self) -> None:
        return None

    def refusal(self, name: str) -> str:
        return f"{name} does not start: its port is on fire."

    def state(self, name: str) -> str:
        self.looks += 1
        if self.looks == self.signal_at:
            os.kill(os.getpid(), signal.SIGTERM)
        return type(self).states(self.looks)


class Up:
    """Runs `laurel` in a directory of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path, self.data_dir = tmp_path, tmp_path / "data"
        raw = yaml.safe_load((Path(__file__).parent.parent / "cluster.yaml").read_text())
        self.raw = raw
        self.config = tmp_path / "cluster.yaml"
        self.write()
        self.ready_at = 3
        self.asked = 0

    def write(self) -> None:
        self.config.write_text(yaml.safe_dump(self.raw, sort_keys=False))

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/readyz":
            self.asked += 1
            if self.asked < self.ready_at:
                return httpx.Response(503, json={"missing": ["the read replica is still reading its journal"]})
            return httpx.Response(200, json={"status": "ready"})
        assert request.headers["authorization"].startswith("Bearer ey")
        return httpx.Response(200, json={"region": "eu-west", "shards": {SHARD: shard_status(serving=True)}})

    def run(self, *words: str, stdin: str | None = None) -> Any:
        words = (*words, "--data-dir", str(self.data_dir))
        if words[:1] == ("up",) or words[:2] in (("region", "start"), ("token", "init")):
            words = (*words, "-c", str(self.config))
        environment = {"LAUREL_URL": None, "LAUREL_TOKEN": None}
        return CliRunner().invoke(main.app, list(words), input=stdin, env=environment, prog_name="laurel")


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Up:
    found = Up(tmp_path)
    FakeLauncher.made.clear()
    monkeypatch.setattr(FakeLauncher, "states", lambda look: "running")
    monkeypatch.setattr(up_command, "Launcher", FakeLauncher)
    monkeypatch.setattr(up_command, "POLL_S", 0.001)

    def mock_client(url: str, token: str) -> httpx.Client:
        transport = httpx.MockTransport(found.answer)
        return httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, transport=transport)

    monkeypatch.setattr(up_command, "open_client", mock_client)
    return found


def failed(run: Any, code: int) -> str:
    """The one sentence of a failure."""
    assert run.exit_code == code, run.output
    lines = run.stderr.strip().splitlines()
    assert len(lines) == 1, run.stderr
    assert lines[0].endswith(".")
    return str(lines[0])


# --- up ------------------------------------------------------------------------------------------------------------


def test_up_makes_keys_and_says_where_a_token_is_and_what_to_type_next(up: Up) -> None:
    run = up.run("up", "--regions", "1")
    assert run.exit_code == 0, run.output
    assert "eu-west is not ready (the read replica is still reading its journal)" in run.stdout
    assert f"eu-west: {SHARD} is authority, epoch 1 of eu-west" in run.stdout
    assert str(up.data_dir / "tokens" / "game-server.token") in run.stdout
    assert f"laurel submit {BOARD} p-ava 9700 --data-dir {up.data_dir}" in run.stdout
    assert FakeLauncher.made[0].stopped
    found = json.loads((up.data_dir / "client.json").read_text())
    assert found["regions"] == {"eu-west": "http://127.0.0.1:7411"}
    assert {role: Path(path).stat().st_mode & 0o777 for role, path in found["tokens"].items()} == dict.fromkeys(up_command.ROLES, 0o600)


def test_up_with_fewer_regions_runs_a_file_of_its_own_that_says_the_same(up: Up) -> None:
    assert up.run("up", "--regions", "1").exit_code == 0
    launcher = FakeLauncher.made[0]
    assert launcher.config_path == up.data_dir / "cluster.yaml"
    assert load_cluster(launcher.config_path) == launcher.config == load_cluster(up.config).restrict(1)


def test_up_in_json_is_one_document_a_line_and_stops_in_order_at_a_signal(up: Up) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run = up.run("up", "--regions", "1", "--json")
    assert run.exit_code == 0, run.output
    told = [json.loads(line) for line in run.stdout.splitlines()]
    assert [document["event"] for document in told] == ["changed", "changed", "ready", "stopped"]
    ready = told[2]
    assert ready["regions"]["eu-west"]["state"] == "ready"
    assert ready["regions"]["eu-west"]["shards"][SHARD]["generations"] == 17
    assert set(ready["tokens"]) == set(up_command.ROLES)
    assert signal.getsignal(signal.SIGTERM) is before


def test_region_that_refuses_its_configuration_ends_up_with_its_words_and_exit_2(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeLauncher, "states", lambda look: "refused" if look > 2 else "starting")
    up.ready_at = 1000
    run = up.run("up", "--regions", "1", "--json")
    assert run.exit_code == 2
    assert run.stderr.strip() == "eu-west does not start: its port is on fire."
    assert FakeLauncher.made[0].stopped


def test_up_refuses_more_regions_than_the_file_has_and_a_shard_without_its_home(up: Up) -> None:
    assert "1 to 3" in failed(up.run("up", "--regions", "4"), 2)
    up.raw["shards"]["us-east/0"] = {"home": "us-east"}
    for board in up.raw["boards"].values():
        board["home"] = "eu-west"
    up.write()
    assert "us-east" in failed(up.run("up", "--regions", "1"), 2)
    assert not up.data_dir.exists()


def test_start_error_is_one_sentence_and_exit_2(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(self: FakeLauncher, prepare: Callable[[], None]) -> None:
        raise StartError("port 7411 of eu-west is taken by another process: stop it, or give eu-west another port.")

    monkeypatch.setattr(FakeLauncher, "start_all", taken)
    assert "port 7411" in failed(up.run("up"), 2).lower()
    assert not (up.data_dir / "client.json").exists()


# --- region ----------------------------------------------------------------------------------------------------------


def test_region_start_without_keys_says_to_make_and_copy_them(up: Up) -> None:
    assert "laurel token init" in failed(up.run("region", "start", "us-east"), 2)
    assert up.run("token", "init").exit_code == 0
    assert up.run("region", "start", "us-east").exit_code == 0
    assert FakeLauncher.made[-1].names == ["us-east"]


def test_readmit_asks_first_and_tells_what_came_of_it(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        if request.url.path.endswith("/mars/readmit"):
            problem = {"code": "unknown_region", "detail": "there is no region mars", "field": "name", "allowed": "eu-west"}
            return httpx.Response(422, json=problem)
        return httpx.Response(200, json={"readmitted": "us-east", "shards": {SHARD: {"epoch": 8, "owner": "eu-west"}}})

    def connect(regions: dict[str, str], token: str, **options: Any) -> LaurelClient:
        return LaurelClient(regions, token, transport=httpx.MockTransport(answer), prefer="eu-west", spawn=lambda work: None, **options)

    monkeypatch.setattr(commands, "connect", connect)
    make_keys(up.data_dir, ["eu-west"])
    up_command.write_client_file(up.data_dir, {"eu-west": "http://eu"})
    assert up.run("region", "readmit", "us-east", stdin="n\n").exit_code == 1
    assert sent == []
    run = up.run("region", "readmit", "us-east", stdin="y\n")
    assert f"us-east is a member of {SHARD} again, from epoch 8 of eu-west on" in run.stdout
    assert sent[0].url.path == "/v1/admin/regions/us-east/readmit"
    assert json.loads(up.run("region", "readmit", "us-east", "--yes", "--json").stdout)["readmitted"] == "us-east"
    assert "--yes" in failed(up.run("region", "readmit", "us-east", "--json"), 2)
    assert "eu-west" in failed(up.run("region", "readmit", "mars", "--yes"), 1)


# --- token -----------------------------------------------------------------------------------------------------------


def test_issued_token_is_one_of_the_cluster_with_what_was_asked(up: Up) -> None:
    assert "laurel up" in failed(up.run("token", "issue", "--scope", "reader", "--game", "*"), 2)
    assert up.run("token", "init").exit_code == 0
    words = ("token", "issue", "--scope", "game-server", "--game", "kart", "--game", "chess", "--ttl", "12h", "--sub", "gs-7", "--json")
    told = json.loads(up.run(*words).stdout)
    claims = TokenVerifier(public_keys([(up.data_dir / "keys" / "cluster.pub").read_text()])).verify(told["token"])
    assert (claims.sub, claims.scope, sorted(claims.games)) == ("gs-7", "game-server", ["chess", "kart"])
    assert told["expires_in_s"] == 43_200


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--scope", "god", "--game", "*"], "--scope"),
        (["--scope", "reader"], "--game"),
        (["--scope", "reader", "--game", "Kart!"], "--game"),
        (["--scope", "reader", "--game", "*", "--ttl", "0s"], "--ttl"),
        (["--scope", "reader", "--game", "*", "--ttl", "3651d"], "--ttl"),
        (["--scope", "reader", "--game", "*", "--ttl", "soon"], "--ttl"),
        (["--scope", "reader", "--game", "*", "--sub", "a\nb"], "--sub"),
    ],
)
def test_token_with_a_wrong_option_is_exit_2(up: Up, words: list[str], named: str) -> None:
    make_keys(up.data_dir, ["eu-west"])
    assert named in failed(up.run("token", "issue", *words), 2)


def test_signing_key_that_others_can_read_is_refused(up: Up) -> None:
    make_keys(up.data_dir, ["eu-west"])
    (up.data_dir / "keys" / "cluster.pem").chmod(0o644)
    assert "chmod 600" in failed(up.run("token", "issue", "--scope", "reader", "--game", "*"), 2)


# --- what the data was written with ------------------------------------------------------------------------------------


def written(data_dir: Path, rules: BoardRules, shard: str = SHARD, board: str = BOARD) -> None:
    """Leave a ledger in which `board` was created with `rules`."""
    path = RegionPaths(data_dir, "eu-west").ledger(shard)
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = LmdbLedger(path)
    record = BoardCreated(number=1, board_id=board, rules=rules, incarnation="b1", created_by="test", at_ms=1)
    ledger.apply([seal_entry(1, 1, "batch-1", [record])])
    ledger.close()


@pytest.mark.parametrize(
    ("rule", "value"),
    [("policy", "latest"), ("ties", "player_id"), ("decimals", 2), ("ranking", "dense"), ("max_age_ms", 1000)],
)
def test_board_whose_rules_differ_from_its_data_is_refused_in_one_sentence(up: Up, rule: str, value: Any) -> None:
    written(up.data_dir, make_rules("best_score", visibility="public"))
    up.raw["boards"][BOARD][rule] = value
    up.write()
    sentence = failed(up.run("up", "--regions", "1"), 2)
    assert f"boards.{BOARD}.{rule}" in sentence
    assert str(up.config) in sentence
    assert f"`{value}`" in sentence
    assert not (up.data_dir / "client.json").exists()


def test_rules_that_change_no_order_are_allowed_and_said_to_have_no_effect(up: Up) -> None:
    written(up.data_dir, make_rules("best_score", visibility="private", publish_interval_ms=500))
    run = up.run("up", "--regions", "1")
    assert run.exit_code == 0, run.output
    assert f"boards.{BOARD}.visibility stays `private`, which the board was created with" in run.stderr
    assert f"boards.{BOARD}.publish_interval_ms stays `500`" in run.stderr


def test_same_rules_and_boards_of_no_file_start_without_a_word(up: Up) -> None:
    written(up.data_dir, make_rules("best_score"), board="kart:made-by-hand:S1:global")
    run = up.run("up", "--regions", "1")
    assert (run.exit_code, run.stderr) == (0, "")


def test_board_cannot_move_to_another_shard_by_the_file(up: Up) -> None:
    written(up.data_dir, make_rules("best_score", visibility="public"))
    up.raw["shards"]["us-east/0"] = {"home": "us-east"}
    for board in up.raw["boards"].values():
        board["home"] = "us-east"
    up.write()
    with pytest.raises(ConfigError, match="home must be `eu-west`, where its data is, not `us-east`"):
        preflight.check(load_cluster(up.config), "eu-west", up.data_dir, file="cluster.yaml")


def test_ledger_in_doubt_or_missing_or_broken_says_nothing(up: Up) -> None:
    written(up.data_dir, make_rules("latest"))
    path = RegionPaths(up.data_dir, "eu-west").ledger(SHARD)
    assert list(stored_boards(path)) == [BOARD]
    marker = json.loads((path / "marker.json").read_text())
    (path / "marker.json").write_text(json.dumps(marker | {"clean": False, "boot": "another boot"}))
    assert stored_boards(path) == {}
    (path / "marker.json").write_text(json.dumps(marker))
    (path / "data.mdb").write_bytes(b"no such thing")
    assert stored_boards(path) == {}
    assert stored_boards(path / "deeper") == {}


def test_data_of_other_regions_is_refused_and_first_start_remembers_them(up: Up) -> None:
    assert up.run("up", "--regions", "1").exit_code == 0
    assert up.run("up", "--regions", "1").exit_code == 0
    sentence = failed(up.run("up"), 2)
    assert f"regions must be `eu-west`, the regions that wrote the data in {up.data_dir / 'eu-west'}" in sentence


# --- the table -------------------------------------------------------------------------------------------------------


def view(name: str, status: dict[str, Any] | None = None, **facts: Any) -> RegionView:
    shards = {"shards": {SHARD: status}} if status else {}
    return RegionView(name=name, url=f"http://{name}", status=shards, **{"state": "running", "ready": bool(status), **facts})


def test_lag_of_a_region_is_the_owners_word() -> None:
    lag = {"us-east": {"entries": 31, "heard_ms": 12}, "ap-south": {"entries": 0, "heard_ms": 3}}
    views = [
        view("eu-west", shard_status(serving=True, lag=lag)),
        view("us-east", shard_status("follower", generation=15)),
        view("ap-south", state="dead"),
    ]
    found = {row["region"]: row for row in rows(views)}
    assert (found["us-east"]["lag"], found["us-east"]["heard_ms"], found["eu-west"]["lag"]) == (31, 12, None)
    assert found["ap-south"] == {"region": "ap-south", "state": "dead", "restarts": 0}
    assert busiest(views) == [(BOARD, {"eu-west": 17, "us-east": 15})]


def test_table_shows_roles_generations_and_alarms() -> None:
    from rich.console import Console

    status = shard_status(serving=True)
    status["replica"]["alarm"] = "s17: folded 3 rows"
    console = Console(width=200, record=True, file=open(os.devnull, "w"))  # noqa: SIM115  closed with the console
    console.print(render([view("eu-west", status), view("us-east", missing=["no region owns eu-west/0 yet"])], "Ctrl-C stops"))
    text = console.export_text()
    for word in ("authority", "alarm: s17: folded 3 rows", "s17", "not ready", "us-east: no region owns eu-west/0 yet", "Ctrl-C stops"):
        assert word in text
    console.file.close()


def test_only_changes_of_state_role_epoch_owner_and_restarts_are_lines() -> None:
    first = [view("eu-west", shard_status(epoch=1))]
    assert changes([], first) == ["eu-west is ready", f"eu-west: {SHARD} is authority, epoch 1 of eu-west"]
    assert changes(first, [view("eu-west", shard_status(epoch=1, generation=99, committed=50))]) == []
    assert changes(first, [view("eu-west", shard_status(epoch=2), restarts=1)]) == [
        f"eu-west: {SHARD} is authority, epoch 2 of eu-west",
        "eu-west has restarted parts 1 times",
    ]
    assert changes(first, [view("eu-west", state="dead")]) == ["eu-west is dead"]
