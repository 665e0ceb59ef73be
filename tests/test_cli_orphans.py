"""`laurel orphans`: what is asked of which region, what is shown, and when it fails."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))

import http_edge

from laurel import AsyncLaurelClient, LaurelClient, commands, main

SHARD = "eu-west/0"
COUNT = {"epoch": 3, "offset": 12, "boards": 0, "dropped": 1, "done": 1, "held": 0, "operator": 0, "open": 1}
ITEM = {"epoch": 3, "offset": 12, "board": "a:b:c:d", "player_id": "p-1", "event_id": "e-1", "amount": "12.50", "code": ""}
ORPHANS: dict[str, Any] = {
    "caught_up": True,
    "total": 2,
    "entries": [COUNT],
    "orphans": [ITEM | {"state": "open", "outcome": ""}, ITEM | {"state": "done", "outcome": "applied"}],
}


class Shell:
    """Runs commands against regions that answer from `answers` by path, and by host when a region is `away`."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.sent: list[tuple[str, str, Any]] = []
        self.away: set[str] = set()
        self.answers: dict[str, dict[str, Any]] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else dict(request.url.params)
        self.sent.append((request.url.host, f"{request.method} {request.url.path}", body))
        assert request.headers["authorization"] == "Bearer operator-token"
        if request.url.host in self.away:
            raise httpx.ConnectError("away")
        return httpx.Response(200, json={"region": request.url.host, **self.answers[request.url.path]})

    def connect(self, regions: dict[str, str], token: str, **options: Any) -> LaurelClient:
        transport = httpx.MockTransport(self)
        quiet: dict[str, Callable[..., None]] = {"sleep": lambda seconds: None, "spawn": lambda work: None}
        return LaurelClient(regions, token, transport=transport, prefer=next(iter(regions)), **quiet, **options)  # type: ignore[arg-type]

    def run(self, *words: str, stdin: str | None = None) -> Any:
        environment = {"LAUREL_URL": None, "LAUREL_TOKEN": None}
        return CliRunner().invoke(main.app, ["orphans", *words, "--data-dir", str(self.data_dir)], input=stdin, env=environment)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    (tmp_path / "operator.token").write_text("operator-token\n")
    regions = {"eu-west": "http://eu", "us-east": "http://us"}
    (tmp_path / "client.json").write_text(json.dumps({"regions": regions, "tokens": {"operator": str(tmp_path / "operator.token")}}))
    found = Shell(tmp_path)
    monkeypatch.setattr(commands, "connect", found.connect)
    found.answers["/v1/admin/orphans"] = {"shards": {SHARD: ORPHANS}}
    found.answers["/v1/admin/orphans/resubmit"] = {
        "shards": {SHARD: {"outcomes": {"applied": 2}, "entries": [COUNT | {"done": 2, "open": 0}]}}
    }
    gone = {"shard": SHARD, "epoch": 3, "entries": 1, "events": 2, "recorded": {"epoch": 7, "offset": 90}}
    found.answers["/v1/admin/orphans/sign-off"] = gone
    return found


def sign_off(shell: Shell, *more: str, stdin: str | None = None) -> Any:
    return shell.run("sign-off", "--region", "us-east", "--shard", SHARD, "--epoch", "3", "--why", "checked", *more, stdin=stdin)


def test_list_asks_every_region_and_shows_each_orphan_and_the_counts(shell: Shell) -> None:
    run = shell.run("list")
    assert run.exit_code == 0, run.output
    assert [host for host, _, _ in shell.sent] == ["eu", "us"]
    assert run.stdout.count("e-1") == 4
    assert "eu-west eu-west/0: 1 done, 0 held, 0 operator, 1 open" in run.stdout
    assert "catching up" not in run.stdout
    shell.answers["/v1/admin/orphans"] = {"shards": {SHARD: {**ORPHANS, "caught_up": False}}}
    assert "still catching up" in shell.run("list").stdout
    shell.answers["/v1/admin/orphans"] = {"shards": {SHARD: ORPHANS}}
    assert json.loads(shell.run("list", "--region", "us-east", "--shard", SHARD, "--limit", "5", "--json").stdout) == {
        "regions": {"us-east": {"region": "us", "shards": {SHARD: ORPHANS}}}
    }
    assert shell.sent[-1] == ("us", "GET /v1/admin/orphans", {"limit": "5", "shard": SHARD})


def test_list_tells_which_regions_did_not_answer_and_fails(shell: Shell) -> None:
    shell.away = {"us"}
    run = shell.run("list")
    assert run.exit_code == 1
    assert "us-east" in run.stderr
    assert "eu-west eu-west/0:" in run.stdout


def test_resubmit_succeeds_when_nothing_is_open_any_more_and_fails_while_something_is(shell: Shell) -> None:
    run = shell.run("resubmit", "--region", "us-east")
    assert run.exit_code == 0, run.output
    assert shell.sent == [("us", "POST /v1/admin/orphans/resubmit", {})]
    assert "2 applied; now 2 done, 0 held, 0 operator, 0 open" in run.stdout
    shell.answers["/v1/admin/orphans/resubmit"]["shards"][SHARD]["entries"] = [COUNT]
    run = shell.run("resubmit", "--shard", SHARD)
    assert run.exit_code == 1
    assert "still open" in run.stderr
    assert shell.sent[-1][2] == {"shard": SHARD}


def test_sign_off_tells_what_goes_and_asks_before_it_does_it(shell: Shell) -> None:
    run = sign_off(shell, stdin="n\n")
    assert run.exit_code == 1
    assert "1 done, 0 held, 0 operator, 1 open" in run.output
    assert [what for _, what, _ in shell.sent] == ["GET /v1/admin/orphans"]
    run = sign_off(shell, stdin="y\n")
    assert run.exit_code == 0, run.output
    assert shell.sent[-1] == ("us", "POST /v1/admin/orphans/sign-off", {"shard": SHARD, "epoch": 3, "why": "checked"})
    assert "1 entries with 2 events are gone from us-east; recorded at 7-90" in run.stdout


def test_sign_off_in_a_script_needs_yes_and_prints_one_object(shell: Shell) -> None:
    assert sign_off(shell, "--json").exit_code == 2
    assert shell.sent == []
    assert json.loads(sign_off(shell, "--json", "--yes").stdout)["recorded"] == {"epoch": 7, "offset": 90}


def test_sign_off_of_nothing_is_harmless_and_says_so(shell: Shell) -> None:
    shell.answers["/v1/admin/orphans/sign-off"] = {"epoch": 3, "entries": 0, "events": 0}
    run = sign_off(shell, "--yes")
    assert (run.exit_code, run.stdout.strip()) == (0, "us-east keeps no orphans of epoch 3 in eu-west/0")


@pytest.mark.parametrize("left_out", ["--region", "--shard", "--epoch", "--why"])
def test_sign_off_names_everything(shell: Shell, left_out: str) -> None:
    words = {"--region": "us-east", "--shard": SHARD, "--epoch": "3", "--why": "checked"}
    given = [word for option, value in words.items() if option != left_out for word in (option, value)]
    assert shell.run("sign-off", *given, "--yes").exit_code == 2
    assert shell.sent == []


def test_an_unknown_region_is_wrong_use(shell: Shell) -> None:
    for words in (("list", "--region", "x"), ("resubmit", "--region", "x")):
        run = shell.run(*words)
        assert (run.exit_code, "none of" in run.stderr) == (2, True)
    assert shell.sent == []


def test_the_real_http_edge_answers_what_the_asynchronous_client_reads() -> None:
    edge = http_edge.World()

    async def whole() -> None:
        transport = httpx.ASGITransport(app=edge.app)
        async with AsyncLaurelClient({"eu-west": "http://region"}, http_edge.token("operator", ("*",)), transport=transport) as client:
            assert (await client.orphans(region="eu-west"))["shards"][SHARD]["total"] == 0
            assert (await client.resubmit_orphans(region="eu-west", shard=SHARD))["shards"][SHARD]["outcomes"] == {"applied": 1}
            done = await client.sign_off_orphans(region="eu-west", shard=SHARD, epoch=3, why="checked")
            assert (done["epoch"], done["why"]) == (3, "checked")

    asyncio.run(whole())
