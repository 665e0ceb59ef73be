"""The client commands of `laurel` on a mock transport: output, JSON, exit codes, where to and with which token."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from laurel import LaurelClient, board_commands, commands, main
from regions import boards_api

BOARD = "arena-clash:solo:S7:global"
AT = "2026-11-30T10:05:00.000Z"
Handler = Callable[[httpx.Request], httpx.Response]


class Shell:
    """Runs commands in a directory of its own against `answer`."""

    def __init__(self, tmp_path: Path) -> None:
        self.data_dir = tmp_path / ".laurel"
        self.sent: list[httpx.Request] = []
        self.answer: Handler = lambda request: httpx.Response(500)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        return self.answer(request)

    def connect(self, regions: dict[str, str], token: str, **options: Any) -> LaurelClient:
        return LaurelClient(
            regions,
            token,
            transport=httpx.MockTransport(self),
            prefer=next(iter(regions)),
            sleep=lambda seconds: None,
            spawn=lambda work: None,
            **options,
        )

    def up(self) -> None:
        """Leave what `laurel up` leaves."""
        self.data_dir.mkdir()
        tokens = {}
        for role in ("game-server", "reader", "operator"):
            path = self.data_dir / f"{role}.token"
            path.write_text(f"{role}-token\n")
            tokens[role] = str(path)
        regions = {"eu-west": "http://eu", "us-east": "http://us"}
        (self.data_dir / "client.json").write_text(json.dumps({"regions": regions, "tokens": tokens}))

    def run(self, *words: str, stdin: str | None = None, env: dict[str, str] | None = None) -> Any:
        environment = {"LAUREL_URL": None, "LAUREL_TOKEN": None, **(env or {})}
        if words and words[0] not in ("up", "region", "token"):
            words = (*words, "--data-dir", str(self.data_dir))
        return CliRunner().invoke(main.app, list(words), input=stdin, env=environment, prog_name="laurel")

    def tokens(self) -> list[str]:
        return [request.headers.get("authorization", "") for request in self.sent]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    found = Shell(tmp_path)
    monkeypatch.setattr(commands, "connect", found.connect)
    monkeypatch.setattr(board_commands, "sleep", lambda seconds: None)
    monkeypatch.setattr(main, "entry_points", lambda group: [])
    found.up()
    return found


def failed(run: Any, code: int) -> str:
    """The one sentence of a failure."""
    assert run.exit_code == code, run.output
    lines = run.stderr.strip().splitlines()
    assert len(lines) == 1, run.stderr
    assert lines[0].endswith(".")
    return str(lines[0])


def entry(position: int, player_id: str, value: str) -> dict[str, Any]:
    return {"position": position, "rank": position, "player_id": player_id, "value": value, "achieved_at": AT, "version": 1}


def envelope(*entries: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"board": BOARD, "generation": "s17", "epoch": 7, "total": 5, "entries": list(entries), "next": None, **fields}
    return httpx.Response(200, json=body, headers={"X-Laurel-Region": "eu-west", "X-Laurel-Age-Ms": "12"})


def results(*outcomes: str) -> Handler:
    """Outcomes in turn, over all requests."""
    left = list(outcomes)

    def answer(request: httpx.Request) -> httpx.Response:
        events = json.loads(request.content)["events"]
        told = [
            {"event_id": e["event_id"], "outcome": left.pop(0), "value": "9700", "epoch": 7, "offset": 1042, "visible_by": "s18"}
            for e in events
        ]
        return httpx.Response(200, json={"board": BOARD, "region": "eu-west", "results": told})

    return answer


def problem(status: int, code: str, **fields: Any) -> Handler:
    body = {"status": status, "code": code, "title": code, "detail": f"Refused as {code}", **fields}
    return lambda request: httpx.Response(status, json=body)


# Reading


def test_top_shows_a_table_and_json_holds_the_whole_page(shell: Shell) -> None:
    shell.answer = lambda request: envelope(entry(1, "p-ava", "9800"), entry(2, "[red]p-b[/]", "9.50"), next="c2")
    shown = shell.run("top", BOARD)
    assert shown.exit_code == 0
    assert "p-ava" in shown.stdout
    assert "[red]p-b[/]" in shown.stdout
    assert "--cursor c2" in shown.stdout
    told = json.loads(shell.run("top", BOARD, "--limit", "2", "--json").stdout)
    assert [e["value"] for e in told["entries"]] == ["9800", "9.50"]
    assert (told["generation"], told["region"], told["age_ms"]) == ("s17", "eu-west", 12)
    assert shell.tokens() == ["Bearer reader-token"] * 2


def test_rank_and_nearby(shell: Shell) -> None:
    shell.answer = lambda request: envelope(entry(4, "p-dev", "9700"))
    assert "p-dev" in shell.run("rank", BOARD, "p-dev").stdout
    told = json.loads(shell.run("nearby", BOARD, "p-dev", "--window", "1", "--at-least", "7-1042", "--json").stdout)
    assert told["player_id"] == "p-dev"
    assert dict(shell.sent[-1].url.params) == {"view": "nearby", "window": "1", "at_least": "7-1042"}


PIN = "s17@61ba7a20330e"


def test_top_and_nearby_say_how_to_go_on_in_the_same_generation(shell: Shell) -> None:
    shell.answer = lambda request: envelope(entry(4, "p-dev", "9700"), next="c5", previous="c3", pin=PIN)
    shown = shell.run("top", BOARD, "--cursor", "c4", "--generation", PIN).stdout.splitlines()
    assert shown[-2:] == ["next page: --cursor c5", "previous page: --cursor c3"]
    assert shown[-3].startswith(f"{BOARD}: generation {PIN} of 5 players")
    assert shell.sent[-1].url.params["generation"] == PIN
    shown = shell.run("nearby", BOARD, "p-dev").stdout.splitlines()
    assert shown[-2:] == [f"further below: laurel top {BOARD} --cursor c5", f"further above: laurel top {BOARD} --cursor c3"]
    shell.answer = lambda request: envelope(entry(1, "p-dev", "9700"), previous=None)
    assert "--cursor" not in shell.run("top", BOARD).stdout + shell.run("nearby", BOARD, "p-dev").stdout


def test_percentile_says_which_share_and_whether_it_is_an_estimate(shell: Shell) -> None:
    body = b'{"board": "a:b:c:d", "generation": "s17", "percentile": 75.0, "entries": [], "exact": true}'
    shell.answer = lambda request: httpx.Response(200, content=body)
    run = shell.run("percentile", BOARD, "p-dev", "--region", "us-east", "--generation", PIN)
    assert run.stdout.splitlines()[-1] == "percentile: 75.0 % of the players have this rank or a worse one"
    assert shell.sent[-1].url.host == "us"
    assert dict(shell.sent[-1].url.params) == {"view": "percentile", "generation": PIN}
    told = shell.run("percentile", BOARD, "p-dev", "--at-least", "eu-west/1:7-1042", "--json").stdout
    assert '"percentile": 75.0}' in told
    assert shell.sent[-1].url.params["at_least"] == "eu-west/1:7-1042"
    shell.answer = lambda request: envelope(entry(40, "p-dev", "1"), percentile=12.5, exact=False, mode="approximate", error_bound=3)
    shown = shell.run("percentile", BOARD, "p-dev", "--approximate").stdout
    assert "places may be off by 3 either way" in shown
    assert "percentile: about 12.5 %" in shown
    assert shell.sent[-1].url.params["mode"] == "approximate"
    assert shell.tokens() == ["Bearer reader-token"] * 3


def test_ranks_of_many_are_asked_in_one_call(shell: Shell) -> None:
    shell.answer = lambda request: envelope(entry(4, "p-dev", "9700"), among="listed", absent=["p-1", "p-2"])
    run = shell.run("ranks", BOARD, "p-dev", "p-1", "p-2", "--among", "listed", "--at-least", "7-1042", "--region", "us-east")
    assert run.exit_code == 0, run.output
    assert json.loads(shell.sent[0].content) == {"players": ["p-dev", "p-1", "p-2"], "among": "listed"}
    assert (shell.sent[0].url.host, dict(shell.sent[0].url.params)) == ("us", {"at_least": "7-1042"})
    assert "p-dev" in run.stdout
    assert run.stdout.splitlines()[-2:] == ["places are among the listed players only", "without a row: p-1, p-2"]
    told = json.loads(shell.run("ranks", BOARD, "p-dev", "--generation", PIN, "--json").stdout)
    assert told["absent"] == ["p-1", "p-2"]
    assert (json.loads(shell.sent[1].content)["among"], shell.sent[1].url.params["generation"]) == ("board", PIN)
    assert shell.tokens() == ["Bearer reader-token"] * 2


@pytest.mark.parametrize("way", [["-"], ["--file", "-"], ["--file", "FILE"]])
def test_ranks_reads_ids_line_by_line(shell: Shell, tmp_path: Path, way: list[str]) -> None:
    text = "\ufeffp one\r\n\n-\n p-\u2028x \n"
    (tmp_path / "ids").write_bytes(text.encode())
    shell.answer = lambda request: envelope()
    run = shell.run("ranks", BOARD, *(word.replace("FILE", str(tmp_path / "ids")) for word in way), stdin=text)
    assert run.exit_code == 0, run.output
    assert json.loads(shell.sent[0].content)["players"] == ["p one", "-", "p-\u2028x"]


def test_ranks_takes_a_thousand_ids_and_no_more(shell: Shell) -> None:
    shell.answer = lambda request: envelope()
    ids = [f"p-{n}" for n in range(1001)]
    assert shell.run("ranks", BOARD, "-", stdin="\n".join(ids[:1000])).exit_code == 0
    assert json.loads(shell.sent.pop().content)["players"] == ids[:1000]
    assert failed(shell.run("ranks", BOARD, "-", stdin="\n".join(ids)), 2).startswith("1001 player ids are more than the 1000")
    assert shell.sent == []


def test_ranks_says_what_is_wrong_with_its_ids_and_asks_nothing(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"p-1\n\xe9va\n")
    (tmp_path / "blank").write_bytes(b"\n \n")
    for words, said in (
        ([], "say whose places"),
        (["p-1", "--file", str(tmp_path / "blank")], "say whose places"),
        (["p-1", "-"], "- stands alone"),
        (["--file", str(tmp_path / "latin")], "latin line 2 is not UTF-8"),
        (["--file", str(tmp_path / "blank")], "blank holds no player id"),
        (["--file", str(tmp_path / "none")], "none cannot be read"),
        (["--file", str(tmp_path)], "cannot be read"),
        (["-"], "standard input holds no player id"),
        (["p-1", "--among", "friends"], "neither board nor listed"),
    ):
        assert said in failed(shell.run("ranks", BOARD, *words, stdin=""), 2).replace("Say", "say").replace("Standard", "standard")
    assert shell.sent == []


def test_ranks_refused_by_the_region_is_exit_1(shell: Shell) -> None:
    shell.answer = problem(422, "bad_id", detail="players[1] must be short", field="players[1]", allowed="1 to 128 bytes")
    run = shell.run("ranks", BOARD, "a", "b", "--json")
    assert failed(run, 1) == "players[1] must be short; allowed is 1 to 128 bytes."
    assert run.stdout == ""


def test_player_without_a_row_is_exit_1(shell: Shell) -> None:
    shell.answer = problem(404, "not_ranked")
    run = shell.run("rank", BOARD, "nobody", "--json")
    assert "Refused as not_ranked" in failed(run, 1)
    assert run.stdout == ""


def test_pinned_region_is_the_one_asked(shell: Shell) -> None:
    shell.answer = lambda request: envelope()
    shell.run("top", BOARD, "--region", "us-east")
    assert shell.sent[0].url.host == "us"
    assert "eu-west, us-east" in failed(shell.run("top", BOARD, "--region", "mars"), 2)


# Submitting


def test_submit_prints_the_acknowledgement(shell: Shell) -> None:
    shell.answer = results("applied")
    run = shell.run("submit", BOARD, "p-dev", "9700", "--event-id", "evt-101", "--achieved-at", AT)
    assert run.exit_code == 0
    assert run.stdout == "evt-101: applied, value 9700, at 7-1042, visible by s18\n"
    (event,) = json.loads(shell.sent[0].content)["events"]
    assert event == {"event_id": "evt-101", "player_id": "p-dev", "value": "9700", "achieved_at": AT}
    assert shell.tokens() == ["Bearer game-server-token"]


def test_negative_delta_is_a_value_and_no_option(shell: Shell) -> None:
    shell.answer = results("applied")
    assert json.loads(shell.run("submit", BOARD, "p-dev", "-3", "--delta", "--json").stdout)["outcome"] == "applied"
    assert json.loads(shell.sent[0].content)["events"][0]["delta"] == "-3"


@pytest.mark.parametrize(("outcome", "code"), [("duplicate", 0), ("not_an_improvement", 0), ("held", 0), ("conflict", 1), ("invalid", 1)])
def test_exit_code_says_whether_the_event_is_recorded(shell: Shell, outcome: str, code: int) -> None:
    shell.answer = results(outcome)
    run = shell.run("submit", BOARD, "p-dev", "1", "--json")
    assert run.exit_code == code
    assert json.loads(run.stdout)["outcome"] == outcome


def test_unknown_outcome_names_the_id_to_submit_again(shell: Shell) -> None:
    def slow(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    shell.answer = slow
    sentence = failed(shell.run("submit", BOARD, "p-dev", "1", "--event-id", "evt-101"), 1)
    assert "evt-101" in sentence
    assert "submit again with the same event id" in sentence


def lines(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"event_id": f"e-{n}", "player_id": f"p-{n}", "value": n}) + "\n" for n in range(count)))
    return path


def test_file_is_submitted_in_batches(shell: Shell, tmp_path: Path) -> None:
    shell.answer = results("applied", "applied", "duplicate", "applied", "applied")
    run = shell.run("submit", BOARD, "--file", str(lines(tmp_path / "events.jsonl", 5)), "--batch", "2", "--json")
    assert run.exit_code == 0
    told = json.loads(run.stdout)
    assert (told["events"], told["recorded"], told["outcomes"]) == (5, 5, {"applied": 4, "duplicate": 1})
    assert [len(json.loads(r.content)["events"]) for r in shell.sent] == [2, 2, 1]


def test_file_that_fails_half_way_is_sent_again_with_the_same_ids(shell: Shell, tmp_path: Path) -> None:
    path = lines(tmp_path / "events.jsonl", 4)
    good = results(*["applied"] * 2, *["duplicate"] * 2, *["applied"] * 2)
    refuse = problem(503, "hold", definite=True)
    shell.answer = lambda request: refuse(request) if b'"e-2"' in request.content else good(request)
    sentence = failed(shell.run("submit", BOARD, "--file", str(path), "--batch", "2", "--json"), 1)
    assert sentence.startswith("2 of 4 events are recorded")
    assert "run the same command again" in sentence
    first = json.loads(shell.sent[0].content)
    shell.answer, before = good, len(shell.sent)
    assert json.loads(shell.run("submit", BOARD, "--file", str(path), "--batch", "2", "--json").stdout)["recorded"] == 4
    assert json.loads(shell.sent[before].content) == first


def test_refused_events_of_a_file_are_told_and_the_rest_counts(shell: Shell, tmp_path: Path) -> None:
    shell.answer = results("applied", "invalid", "applied")
    run = shell.run("submit", BOARD, "--file", str(lines(tmp_path / "events.jsonl", 3)), "--json")
    assert run.exit_code == 1
    assert [r["event_id"] for r in json.loads(run.stdout)["refused"]] == ["e-1"]


@pytest.mark.parametrize("line", ['{"player_id": "p", "value": 1}', '{"event_id": 7, "player_id": "p", "value": 1}', "[1]", "{nope"])
def test_file_with_a_bad_line_is_refused_before_anything_is_sent(shell: Shell, tmp_path: Path, line: str) -> None:
    path = lines(tmp_path / "events.jsonl", 2)
    path.write_text(path.read_text() + line + "\n")
    assert "line 3" in failed(shell.run("submit", BOARD, "--file", str(path)), 2)
    assert shell.sent == []


@pytest.mark.parametrize(
    "words", [[], ["p-dev"], ["p-dev", "12,5"], ["p-dev", "1e3"], ["p-dev", "--josn"], ["p-dev", "1", "2"], ["p", "1", "--file", "x"]]
)
def test_wrong_use_is_exit_2_and_sends_nothing(shell: Shell, words: list[str]) -> None:
    failed(shell.run("submit", BOARD, *words), 2)
    assert shell.sent == []


# Operating


STATUS = {
    "region": "eu-west",
    "shards": {
        "eu-west/0": {
            "role": "authority",
            "known_epoch": 7,
            "known_owner": "eu-west",
            "committed": 1042,
            "tail": 1042,
            "serving": True,
            "lag": {"us-east": {"entries": 31, "heard_ms": 12, "amnesiac": False}},
            "replica": {"serving": True, "boards_count": 2, "boards": {BOARD: {"generation": 17}, "k:l:m:n": {"generation": 5}}},
        },
        "us-east/0": {"role": "follower", "known_epoch": 4, "known_owner": "us-east"},
    },
}
BOARDS = [
    {"board": BOARD, "shard": "eu-west/0"},
    {"board": "kart:laps:S1:global", "shard": "eu-west/0"},
    {"board": "a:b:c:d", "shard": "us-east/0"},
]
MOVED = {"moved": [{"shard": "eu-west/0", "boards": [BOARD], "epoch": 8, "owner": "us-east", "duration_ms": 90}]}


def operate(request: httpx.Request) -> httpx.Response:
    answers = {"/v1/boards": {"boards": BOARDS}, "/v1/status": STATUS, "/v1/admin/failover": MOVED}
    return httpx.Response(200, json=answers[request.url.path])


def test_status_asks_every_region_and_shows_one_that_is_away(shell: Shell) -> None:
    def one_away(request: httpx.Request) -> httpx.Response:
        if request.url.host == "us":
            raise httpx.ConnectError("refused")
        return operate(request)

    shell.answer = one_away
    run = shell.run("status", "--json")
    assert run.exit_code == 0
    told = json.loads(run.stdout)["regions"]
    assert told["eu-west"]["shards"] == STATUS["shards"]
    assert told["us-east"]["error"]["code"] == "unreachable"
    shown = shell.run("status").stdout
    assert "authority" in shown
    assert "unreachable" in shown
    assert "22" in shown.split()  # the sum of the generations
    assert "serving" in shown


def test_status_without_any_region_is_exit_1(shell: Shell) -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    shell.answer = away
    assert "No region answered" in failed(shell.run("status", "--json"), 1)


def test_failover_names_the_boards_that_move_along_and_asks(shell: Shell) -> None:
    shell.answer = operate
    run = shell.run("failover", BOARD, "--to", "us-east", stdin="n\n")
    assert run.exit_code == 1
    assert f"eu-west/0 with {BOARD}, kart:laps:S1:global" in run.stderr
    assert not [r for r in shell.sent if r.method == "POST"]
    run = shell.run("failover", "--from", "eu-west", "--to", "us-east", "--force", stdin="y\n")
    assert run.exit_code == 0
    assert "kart:laps:S1:global" in run.stderr
    assert "a:b:c:d" not in run.stderr
    assert json.loads(shell.sent[-1].content) == {"from": "eu-west", "to": "us-east", "force": True}
    assert shell.tokens()[-1] == "Bearer operator-token"


def test_failover_in_a_script_does_not_ask(shell: Shell) -> None:
    shell.answer = operate
    run = shell.run("failover", "eu-west/0", "--to", "us-east", "--yes", "--json")
    assert json.loads(run.stdout) == MOVED
    assert json.loads(shell.sent[0].content) == {"shard": "eu-west/0", "to": "us-east", "force": False}
    assert "--yes" in failed(shell.run("failover", "eu-west/0", "--to", "us-east", "--json"), 2)
    failed(shell.run("failover", "eu-west/0", "--from", "eu-west", "--to", "us-east"), 2)
    failed(shell.run("failover", "eu-west/0"), 2)


def test_failover_that_moves_nothing_is_exit_1(shell: Shell) -> None:
    shell.answer = lambda request: httpx.Response(200, json={"moved": []})
    assert "laurel status" in failed(shell.run("failover", "eu-west/0", "--to", "us-east", "--yes", "--json"), 1)


def test_failover_of_a_spread_board_tells_of_each_shard(shell: Shell) -> None:
    boards = [{"board": BOARD, "shard": "eu-west/0", "shards": ["eu-west/0", "eu-west/1"]}, {"board": "a:b:c:d", "shard": "eu-west/1"}]
    failed_part = {"shard": "eu-west/1", "code": "failover_refused", "detail": "eu-west/1: us-east lags", "definite": True}
    answers = {"/v1/boards": {"boards": boards}, "/v1/admin/failover": {**MOVED, "failed": [failed_part]}}
    shell.answer = lambda request: httpx.Response(200, json=answers[request.url.path])
    run = shell.run("failover", BOARD, "--to", "us-east", stdin="y\n")
    assert f"eu-west/0 with {BOARD}; eu-west/1 with {BOARD}, a:b:c:d to us-east?" in run.stderr
    assert run.exit_code == 1
    assert "1 of 2 shards have moved, these have not: eu-west/1: eu-west/1: us-east lags." in run.stderr
    assert "us-east" in run.stdout


def test_plan_names_a_few_boards_of_a_pool_and_counts_the_others(shell: Shell) -> None:
    pool = [{"board": f"a:b:c:{n}", "shard": "eu-west/0"} for n in range(30)]
    shell.answer = lambda request: httpx.Response(200, json={"boards": pool})
    run = shell.run("failover", "eu-west/0", "--to", "us-east", stdin="n\n")
    assert "a:b:c:7 and 22 more to us-east?" in run.stderr


def test_board_list_goes_on_with_its_cursor(shell: Shell) -> None:
    shell.answer = lambda request: httpx.Response(
        200, json={"boards": [{"board": BOARD, "slices": 4, "shard": "eu-west/0"}], "next": BOARD}
    )
    run = shell.run("board", "list", "--limit", "1", "--cursor", "a:b:c:d")
    assert dict(shell.sent[0].url.params) == {"limit": "1", "cursor": "a:b:c:d"}
    assert run.stdout.rstrip().endswith(f"next page: --cursor {BOARD}")
    assert "4: eu-west/0, ..." in run.stdout


def test_board_is_created_over_shards(shell: Shell) -> None:
    shell.answer = lambda request: httpx.Response(201, json={"board": BOARD, "shards": ["eu-west/0", "eu-west/1"]})
    run = shell.run("board", "create", BOARD, "--policy", "best_score", "--shards", "4", "--secondary", "lower")
    assert json.loads(shell.sent[0].content)["shards"] == 4
    assert json.loads(shell.sent[0].content)["secondary"] == {"direction": "lower"}
    assert "eu-west/0, eu-west/1" in run.stdout
    shell.run("board", "create", BOARD, "--policy", "best_score", "--shards", "eu-west/0,eu-west/1")
    assert json.loads(shell.sent[1].content)["shards"] == ["eu-west/0", "eu-west/1"]
    assert "names no shards" in failed(shell.run("board", "create", BOARD, "--policy", "latest", "--shards", "two"), 2)


def test_board_remove_asks_and_says_how_many_players_go(shell: Shell) -> None:
    told = {"board": BOARD, "incarnation": "b1", "removed": True}
    shell.answer = lambda request: httpx.Response(200, json={"board": BOARD, "total": 12} if request.method == "GET" else told)
    run = shell.run("board", "remove", BOARD, stdin="n\n")
    assert run.exit_code == 1
    assert f"Remove {BOARD} with 12 players" in run.stderr
    assert not [r for r in shell.sent if r.method == "DELETE"]
    assert json.loads(shell.run("board", "remove", BOARD, "--yes", "--json").stdout) == told
    assert shell.tokens()[-1] == "Bearer operator-token"
    assert "--yes" in failed(shell.run("board", "remove", BOARD, "--json"), 2)


OLD, NEW = {"number": 1, "shards": ["eu-west/0"]}, {"number": 2, "shards": ["eu-west/1", "eu-west/2"]}
COPYING = {
    "board": BOARD,
    "moving": True,
    "layout": OLD,
    "to": NEW,
    "phase": "copying",
    "slices": [{"source": 0, "copied_rows": 7, "lag": 3}],
}
THERE = {"board": BOARD, "moving": False, "layout": NEW, "to": None}
STAYED = {"board": BOARD, "moving": False, "layout": OLD, "to": None}


class Move:
    """Answers of a region where a board moves: the order, then one stage a look; the last one stays."""

    def __init__(self, *stages: dict[str, Any], ordered: dict[str, Any] | None = None) -> None:
        self.stages, self.ordered = list(stages), ordered or {"board": BOARD, "moving": True, "layout": NEW}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(202, json=self.ordered)
        return httpx.Response(200, json=self.stages.pop(0) if len(self.stages) > 1 else self.stages[0])


def test_reshard_shows_its_way_and_ends_when_it_has_switched(shell: Shell) -> None:
    shell.answer = Move(COPYING, COPYING, {**COPYING, "phase": "closing"}, THERE)
    run = shell.run("board", "reshard", BOARD, "--shards", "2")
    assert run.exit_code == 0, run.output
    assert run.stderr.splitlines() == ["copying: 7 rows are copied, 3 entries behind", "closing: writes are held until it has switched"]
    assert run.stdout == f"{BOARD} lives on eu-west/1, eu-west/2 (layout 2)\n"
    assert json.loads(shell.sent[0].content) == {"shards": 2}
    shell.answer = Move(COPYING, THERE)
    assert json.loads(shell.run("board", "reshard", BOARD, "--to", "eu-west/1,eu-west/2", "--json").stdout)["layout"] == NEW


def test_reshard_that_is_given_up_meanwhile_is_exit_1(shell: Shell) -> None:
    shell.answer = Move(COPYING, STAYED)
    run = shell.run("board", "reshard", BOARD, "--shards", "2", "--json")
    assert f"The move of {BOARD} was given up, and it stays on eu-west/0" in failed(run, 1)


def test_interrupted_reshard_goes_on_and_says_how_to_see_and_end_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    shell.answer = Move(COPYING)
    monkeypatch.setattr(board_commands, "sleep", interrupt)
    sentence = failed(shell.run("board", "reshard", BOARD, "--shards", "2", "--json"), 130)
    assert f"`laurel board reshard {BOARD} --status`" in sentence
    assert f"`laurel board reshard {BOARD} --abort`" in sentence


def test_reshard_waits_through_an_authority_that_is_away(shell: Shell) -> None:
    away = {"status": 503, "code": "no_authority", "detail": "eu-west does not answer", "definite": True}
    move, looks = Move(THERE), [httpx.Response(503, json=away)] * 8
    shell.answer = lambda request: looks.pop() if looks and request.method == "GET" else move(request)
    run = shell.run("board", "reshard", BOARD, "--shards", "2")
    assert run.exit_code == 0, run.output
    assert "waiting: eu-west does not answer" in run.stderr


def test_move_names_one_shard(shell: Shell) -> None:
    shell.answer = Move(THERE, ordered={**THERE, "layout": {"number": 2, "shards": ["eu-west/3"]}})
    assert shell.run("board", "move", BOARD, "--to", "eu-west/3").stdout == f"{BOARD} lives on eu-west/3 (layout 2)\n"
    assert json.loads(shell.sent[0].content) == {"shards": ["eu-west/3"]}
    assert "one shard" in failed(shell.run("board", "move", BOARD, "--to", "eu-west/3,eu-west/4"), 2)
    assert "one shard" in failed(shell.run("board", "move", BOARD, "--to", "2"), 2)


def test_move_is_seen_and_given_up(shell: Shell) -> None:
    shell.answer = Move(COPYING)
    run = shell.run("board", "reshard", BOARD, "--status")
    assert run.stdout.splitlines()[1] == "on its way to eu-west/1, eu-west/2 (layout 2); copying: 7 rows are copied, 3 entries behind"
    shell.answer = Move({**COPYING, "why": "eu-west/2 does not answer", "alarm": ""})
    assert shell.run("board", "reshard", BOARD, "--status").stdout.endswith("3 entries behind; last trouble: eu-west/2 does not answer\n")
    shell.sent.pop()
    shell.answer = Move({**STAYED, "moving": True, "giving_up": True})
    assert shell.run("board", "reshard", BOARD, "--abort").stdout.splitlines() == [
        f"{BOARD} stays on eu-west/0 (layout 1)",
        f"its move is being given up; see it with `laurel board reshard {BOARD} --status`",
    ]
    assert [r.method for r in shell.sent] == ["GET", "DELETE"]
    for words in ([], ["--shards", "2", "--status"], ["--status", "--abort"], ["--shards", "3", "--to", "eu-west/1,eu-west/2"]):
        failed(shell.run("board", "reshard", BOARD, *words), 2)


def test_abort_of_nothing_says_so(shell: Shell) -> None:
    shell.answer = Move({**STAYED, "giving_up": False})
    run = shell.run("board", "reshard", BOARD, "--abort")
    assert run.stdout.splitlines() == [f"{BOARD} stays on eu-west/0 (layout 1)", "nothing was on its way"]


SLICES: list[dict[str, Any]] = [
    {"shard": "eu-west/1", "copied_rows": 7, "lag": 3, "trouble": ""},
    {"shard": "eu-west/2", "copied_rows": None, "lag": None, "trouble": "no answer"},
]
HELD = "writes are held until it has switched"
GOING = "on its way to eu-west/1, eu-west/2 (layout 2)"


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"phase": "none", "slices": []}, f"{GOING}; beginning: the order is in the journal"),
        ({"phase": "given up", "slices": SLICES}, f"{GOING}; beginning: the order is in the journal"),
        ({"phase": "beginning"}, f"{GOING}; beginning: its shards are asked whether they take writes"),
        ({"phase": "copying", "slices": SLICES}, f"{GOING}; copying: 7 rows are copied, how far behind is not known yet"),
        (
            {"phase": "copying", "slices": [{**SLICES[0], "trouble": "eu-west/0 does not answer"}], "why": "older"},
            f"{GOING}; copying: 7 rows are copied, 3 entries behind; eu-west/1: eu-west/0 does not answer",
        ),
        ({"phase": "closing"}, f"{GOING}; closing: {HELD}"),
        ({"phase": "replaying"}, f"{GOING}; replaying: the last entries are carried over, {HELD}"),
        ({"phase": "switching"}, f"{GOING}; switching: all is carried over, {HELD}"),
        ({"phase": "opening again"}, f"{GOING}; opening again: it could not switch in time, writes go on where it lives"),
        (
            {"phase": "giving up", "alarm": "7 rows, 6 rows", "why": "older"},
            f"it was {GOING}; giving up: what was copied is being removed; alarm: 7 rows, 6 rows",
        ),
        ({"phase": "opening"}, f"{GOING}; opening: it has switched, and its new shards begin to take writes"),
        ({"phase": "weighing"}, f"{GOING}; weighing: 7 rows are copied, 3 entries behind"),
    ],
)
def test_status_of_a_move_says_what_its_stage_means(shell: Shell, stage: dict[str, Any], said: str) -> None:
    shell.answer = Move({**COPYING, **stage})
    run = shell.run("board", "reshard", BOARD, "--status")
    assert run.stdout.splitlines() == [f"{BOARD} lives on eu-west/0 (layout 1)", said]


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({**STAYED, "phase": "none"}, []),
        ({**THERE, "phase": "there", "slices": SLICES, "why": "older"}, []),
        ({**THERE, "phase": "opening"}, ["opening: it has switched, and its new shards begin to take writes"]),
        ({**THERE, "phase": "removing"}, ["removing: it has switched, and what is left on its former shards is being removed"]),
        (
            {**STAYED, "phase": "given up", "slices": SLICES, "why": "older", "alarm": ""},
            ["it was to go to eu-west/1, eu-west/2, which was given up"],
        ),
        (
            {**STAYED, "phase": "given up", "slices": SLICES, "alarm": "7 rows, 6 rows"},
            ["it was to go to eu-west/1, eu-west/2, which was given up; alarm: 7 rows, 6 rows"],
        ),
    ],
)
def test_status_of_a_board_at_rest_says_how_its_last_move_ended(shell: Shell, ended: dict[str, Any], said: list[str]) -> None:
    shell.answer = Move(ended)
    lives = "eu-west/0 (layout 1)" if ended["layout"] == OLD else "eu-west/1, eu-west/2 (layout 2)"
    assert shell.run("board", "reshard", BOARD, "--status").stdout.splitlines() == [f"{BOARD} lives on {lives}", *said]


def test_move_given_up_by_an_alarm_ends_the_command_with_it(shell: Shell) -> None:
    shell.answer = Move(COPYING, {**STAYED, "phase": "given up", "slices": SLICES, "alarm": "7 rows, 6 rows"})
    sentence = failed(shell.run("board", "reshard", BOARD, "--shards", "2", "--json"), 1)
    assert sentence.startswith(f"The move of {BOARD} was given up, alarm: 7 rows, 6 rows, and it stays on eu-west/0")


def test_second_column_is_submitted_and_shown(shell: Shell) -> None:
    shell.answer = results("applied")
    assert shell.run("submit", BOARD, "p-dev", "9700", "--secondary", "-12").exit_code == 0
    assert json.loads(shell.sent[0].content)["events"][0]["secondary"] == -12
    shell.answer = lambda request: envelope({**entry(1, "p-dev", "9700"), "secondary": "-12"})
    shown = shell.run("top", BOARD).stdout
    assert "secondary" in shown
    assert "-12" in shown
    shell.answer = lambda request: envelope(entry(1, "p-dev", "9700"))
    assert "secondary" not in shell.run("top", BOARD).stdout


def test_estimated_rank_says_what_it_is(shell: Shell) -> None:
    shell.answer = lambda request: envelope(entry(40, "p-dev", "1"), player_id="p-dev", exact=False, mode="approximate", error_bound=12)
    run = shell.run("rank", BOARD, "p-dev", "--approximate")
    assert "approximate: places may be off by 12 either way" in run.stdout
    assert dict(shell.sent[0].url.params) == {"view": "rank", "mode": "approximate"}


def test_board_create_list_and_show(shell: Shell) -> None:
    one = {"board": BOARD, "policy": "cumulative", "decimals": 2, "shard": "eu-west/0", "generation": "s0", "total": 0}
    shell.answer = lambda request: httpx.Response(201 if request.method == "POST" else 200, json=one)
    run = shell.run("board", "create", BOARD, "--policy", "cumulative", "--decimals", "2", "--json")
    assert json.loads(run.stdout) == one
    assert json.loads(shell.sent[0].content) == {"board": BOARD, "policy": "cumulative", "decimals": 2}
    assert "cumulative" in shell.run("board", "show", BOARD).stdout
    shell.answer = lambda request: httpx.Response(200, json={"boards": [one], "next": None})
    assert json.loads(shell.run("board", "list", "--json").stdout) == {"boards": [one], "next": None}
    assert "eu-west/0" in shell.run("board", "list").stdout


def test_refusal_names_the_field_and_what_is_allowed(shell: Shell) -> None:
    shell.answer = problem(422, "bad_rule", field="ties", allowed="achieved_at, submitted_at or player_id")
    sentence = failed(shell.run("board", "create", BOARD, "--policy", "latest", "--ties", "luck"), 1)
    assert sentence == "Refused as bad_rule; allowed for ties is achieved_at, submitted_at or player_id."


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"detail": "home is missing; it must be one of eu-west, us-east", "field": "home", "allowed": "eu-west, us-east"},
            "Home is missing; it must be one of eu-west, us-east.",
        ),
        (
            {"detail": "no shard is at home in mars; homes are eu-west, us-east", "field": "home", "allowed": "eu-west, us-east"},
            "No shard is at home in mars; homes are eu-west, us-east.",
        ),
        ({"detail": "shards must be 1 to 4.", "field": "shards", "allowed": "1 to 4"}, "Shards must be 1 to 4."),
        (
            {"detail": "limit is not in its range", "field": "limit", "allowed": "a whole number from 1 to 5"},
            "Limit is not in its range; allowed is a whole number from 1 to 5.",
        ),
        ({"detail": "limits are tight", "field": "limit", "allowed": "1 to 5"}, "Limits are tight; allowed for limit is 1 to 5."),
        ({"detail": "it is too long", "field": "board", "allowed": None}, "It is too long; mend board."),
        ({"detail": "board is too long", "field": "board", "allowed": None}, "Board is too long."),
        ({"detail": "this path takes no POST", "field": None, "allowed": "GET"}, "This path takes no POST; allowed is GET."),
    ],
)
def test_refusal_says_nothing_twice(shell: Shell, fields: dict[str, Any], said: str) -> None:
    shell.answer = problem(422, "bad_rule", **fields)
    assert failed(shell.run("board", "create", BOARD, "--policy", "latest"), 1) == said


def test_advice_stays_where_a_problem_names_a_field(shell: Shell) -> None:
    gone = {"detail": "s3 is gone", "field": "generation", "allowed": "s17, the newest, or a later one", "newest": 17}
    shell.answer = problem(410, "generation_gone", **gone)
    assert failed(shell.run("top", BOARD, "--generation", "s3"), 1) == "s3 is gone; start again with --generation s17."
    shell.answer = problem(503, "not_visible_yet", definite=True, detail="it is not published yet", field="at_least")
    assert failed(shell.run("top", BOARD, "--at-least", "7-9"), 1).endswith("; try again, or see `laurel status`.")


def test_board_create_takes_every_rule_that_the_service_takes(shell: Shell) -> None:
    one = {"board": BOARD, "policy": "fastest_time"}
    shell.answer = lambda request: httpx.Response(201, json=one)
    rules = {
        "policy": "fastest_time", "direction": "lower", "ties": "player_id", "ranking": "dense", "decimals": 0, "max_value": "900000",
        "max_age_ms": 60000, "visibility": "private", "publish_interval_ms": 500, "retention_ms": 240000, "home": "eu-west", "shards": 1,
        "secondary": "lower",
    }  # fmt: skip
    words = [word for name, rule in rules.items() for word in (f"--{name.replace('_', '-')}", str(rule))]
    run = shell.run("board", "create", BOARD, *words)
    assert run.exit_code == 0, run.output
    sent = json.loads(shell.sent[0].content)
    assert sent == {**rules, "board": BOARD, "secondary": {"direction": "lower"}}
    assert set(sent) == set(boards_api._BOARD_FIELDS)


# Where to, and with which token


def test_without_regions_it_says_how_to_get_some(shell: Shell) -> None:
    (shell.data_dir / "client.json").unlink()
    assert "laurel up" in failed(shell.run("top", BOARD), 2)


def test_url_and_token_come_from_options_or_environment(shell: Shell, tmp_path: Path) -> None:
    shell.answer = lambda request: envelope()
    (tmp_path / "mine").write_text("mine-token\n")
    shell.run("top", BOARD, "--url", "far=http://far, http://near", "--token", f"@{tmp_path / 'mine'}")
    shell.run("top", BOARD, env={"LAUREL_URL": "http://env", "LAUREL_TOKEN": "env-token"})
    assert [r.url.host for r in shell.sent] == ["far", "env"]
    assert shell.tokens() == ["Bearer mine-token", "Bearer env-token"]


def test_local_token_goes_to_local_regions_only(shell: Shell) -> None:
    shell.answer = lambda request: envelope()
    shell.run("top", BOARD, "--url", "http://elsewhere")
    shell.run("top", BOARD, "--url", "http://eu/")
    assert shell.tokens() == ["", "Bearer reader-token"]


@pytest.mark.parametrize("text", ["{nope", "[]", '{"regions": 7}', '{"tokens": {}}'])
def test_damaged_client_file_is_exit_2(shell: Shell, text: str) -> None:
    (shell.data_dir / "client.json").write_text(text)
    assert "client.json" in failed(shell.run("top", BOARD), 2)


def test_missing_token_file_and_bad_url_are_exit_2(shell: Shell) -> None:
    (shell.data_dir / "reader.token").unlink()
    assert "reader.token" in failed(shell.run("top", BOARD), 2)
    assert "base URL" in failed(shell.run("top", BOARD, "--url", "127.0.0.1:8101"), 2)


def test_bad_token_says_where_to_get_a_good_one(shell: Shell) -> None:
    shell.answer = problem(401, "bad_token")
    assert "laurel token issue" in failed(shell.run("top", BOARD), 1)


# Server commands


def with_entry_point(monkeypatch: pytest.MonkeyPatch, load: Callable[[], Any]) -> None:
    class Point:
        def load(self) -> Any:
            return load()

    monkeypatch.setattr(main, "entry_points", lambda group: [Point()])


def test_server_commands_without_a_server_say_what_to_install(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pip install 'laurel-leaderboards[server]'" in failed(shell.run("up"), 2)

    def no_ray() -> Any:
        raise ModuleNotFoundError("No module named 'ray'", name="ray")

    with_entry_point(monkeypatch, no_ray)
    sentence = failed(shell.run("token", "issue"), 2)
    assert "ray is missing" in sentence
    assert "[server]" in sentence


def test_unknown_command_is_exit_2(shell: Shell) -> None:
    assert "nix" in failed(shell.run("nix"), 2)


def server_app() -> typer.Typer:
    app, region = typer.Typer(), typer.Typer()

    @app.command()
    def up(regions: int = 3, as_json: bool = typer.Option(False, "--json")) -> None:
        print(f"up {regions} {as_json}")
        if regions > 9:
            raise commands.CommandError("too many regions for this machine: give fewer", exit_code=2)

    @region.command()
    def start(name: str) -> None:
        print(f"start {name}")

    @region.command()
    def readmit(name: str) -> None:
        raise typer.Exit(1)

    app.add_typer(region, name="region")
    return app


def register(app: typer.Typer) -> None:
    app.add_typer(server_app())


@pytest.mark.parametrize("load", [server_app, lambda: register])
def test_server_commands_come_by_entry_point(shell: Shell, monkeypatch: pytest.MonkeyPatch, load: Callable[[], Any]) -> None:
    with_entry_point(monkeypatch, load)
    assert shell.run("up", "--regions", "2", "--json").stdout == "up 2 True\n"
    assert shell.run("region", "start", "eu-west").stdout == "start eu-west\n"
    assert shell.run("region", "readmit", "eu-west").exit_code == 1
    assert "too many regions" in failed(shell.run("up", "--regions", "10"), 2).lower()
    failed(shell.run("up", "--regions", "many"), 2)


def test_entry_points_are_looked_up_in_the_agreed_group() -> None:
    point = EntryPoint(name="server", value="regions.commands:app", group=main.ENTRY_POINT_GROUP)
    assert (point.group, point.module, point.attr) == ("laurel.commands", "regions.commands", "app")


def test_help_lists_server_commands_and_loads_neither_the_server_nor_the_client() -> None:
    code = (
        "import sys; sys.argv = ['laurel', '--help']\n"
        "from laurel.main import main\n"
        "try: main()\n"
        "except SystemExit as exc: assert exc.code == 0\n"
        "heavy = {'httpx', 'pydantic', 'tenacity', 'ray', 'fastapi', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent.parent, timeout=60)
    assert run.returncode == 0, run.stderr
    for name in ("status", "submit", "percentile", "ranks", "failover", "up", "region", "token"):
        assert name in run.stdout


def test_without_typer_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None\nimport laurel.main\n"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent.parent, timeout=60)
    assert run.returncode == 2
    assert run.stderr.strip() == "The `laurel` command needs typer and rich: pip install 'laurel-leaderboards[server]'."
