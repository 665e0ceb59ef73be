"""`laurel up` and `laurel region start`: run regions in the foreground until a signal ends them.

Before anything starts: the directory's lock, an end to what an earlier run left, free ports, the data compared with the file,
keys and tokens, and `client.json`, by which the other commands find regions and tokens.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import yaml
from rich.console import Console
from rich.live import Live

from config.models import LOOPBACK, ClusterConfig, RegionConfig
from laurel import showing
from laurel.commands import CommandError
from regions import preflight
from regions.launcher import Launcher, StartError
from regions.live_table import RegionView, changes, render
from regions.specs import make_keys

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ROLES = ("game-server", "reader", "operator")
POLL_S = 0.5
#: So long a region may take before the plain output says what it waits for.
PATIENCE_S = 30.0


def open_client(url: str, token: str) -> httpx.Client:
    """For one region's probes; tests put one with a mock transport here."""
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=1.0, trust_env=False)


class Foreground:
    """Regions that run as long as this command does. `regions` are started here, of the cluster that `config` describes."""

    def __init__(
        self, *, config: ClusterConfig, file: Path, data_dir: Path, regions: Sequence[str], as_json: bool, source: Path | None = None
    ) -> None:
        """`file` is where the region's processes read `config`, and `source`, if it is another, where the user wrote it."""
        self._config, self._file, self._source = config, file, source or file
        self._data_dir, self._names = data_dir, list(regions)
        self._as_json = as_json
        self._stop = threading.Event()
        self._urls = {name: url_of(region) for name, region in config.regions.items()}
        self._supervisors: dict[str, set[str]] = {name: set() for name in self._names}
        self._console = Console()
        self._clients: dict[str, httpx.Client] = {}

    def run(self, prepare: Callable[[], None]) -> None:
        """Start, show, and stop at a signal. `prepare` runs while nothing else uses the data directory.

        Raises `CommandError`: code 2 when nothing was started, 1 when something went wrong later. No process is left either way.
        """
        launcher = Launcher(self._file, self._data_dir, self._names, config=self._config)
        with _signals(self._stop), launcher:
            launcher.start_all(lambda: self._prepare(prepare))
            try:
                self._watch(launcher)
            finally:
                self._say("Stopping what was started here; the data stays." if not self._as_json else "")
                for client in self._clients.values():
                    client.close()
        if self._as_json:
            showing.print_json({"event": "stopped"})

    def _prepare(self, prepare: Callable[[], None]) -> None:
        for name in self._names:
            for warning in preflight.check(self._config, name, self._data_dir, file=str(self._source)):
                print(f"laurel: {warning}", file=sys.stderr)
        prepare()
        write_client_file(self._data_dir, self._urls)
        token = _read(self._data_dir / "tokens" / "operator.token")
        self._clients = {name: open_client(self._urls[name], token) for name in self._names}

    # --- showing -----------------------------------------------------------------------------------------------------

    def _watch(self, launcher: Launcher) -> None:
        live = self._console.is_terminal and not self._as_json
        began, ready, patient = time.monotonic(), False, True
        views: list[RegionView] = []
        shown = Live(console=self._console, auto_refresh=False) if live else None
        with ThreadPoolExecutor(len(self._names)) as pool, shown or _nothing():
            while not self._stop.is_set():
                before, views = views, list(pool.map(lambda name: self._view(launcher, name), self._names))
                if not ready and (refused := [view.name for view in views if view.state == "refused"]):
                    raise CommandError(launcher.refusal(refused[0]), exit_code=2)
                self._tell_changes(before, views)
                if not ready and all(view.ready for view in views):
                    ready = True
                    preflight.remember_members(self._config, self._names, self._data_dir)
                    self._tell_ready(views, time.monotonic() - began)
                if not ready and patient and time.monotonic() - began > PATIENCE_S:
                    patient = False
                    self._tell_late(views)
                if shown is not None:
                    note = "Ctrl-C stops these regions; their data stays."
                    shown.update(render(views, note, self._console.width), refresh=True)
                self._stop.wait(POLL_S)

    def _view(self, launcher: Launcher, name: str) -> RegionView:
        region = launcher.regions[name]
        report = region.report()
        if report is not None:
            self._supervisors[name].add(report.started_at)
        restarts = (report.restarts if report else 0) + max(0, len(self._supervisors[name]) - 1)
        state = launcher.state(name)
        ready, missing, status = False, [], {}
        try:
            answer = self._clients[name].get("/readyz")
            ready = answer.status_code == 200
            missing = [] if ready else list(answer.json().get("missing", ()))
            status = self._clients[name].get("/v1/status").raise_for_status().json()
        except (httpx.HTTPError, ValueError, AttributeError):
            ready = False
        return RegionView(name=name, url=self._urls[name], state=state, ready=ready, missing=missing, restarts=restarts, status=status)

    def _tell_changes(self, before: list[RegionView], views: list[RegionView]) -> None:
        lines = changes(before, views)
        if self._as_json:
            if lines:
                showing.print_json({"event": "changed", "changes": lines, "regions": {view.name: _told(view) for view in views}})
        elif not self._console.is_terminal:
            for line in lines:
                self._say(line)

    def _tell_ready(self, views: list[RegionView], seconds: float) -> None:
        tokens = known_tokens(self._data_dir)
        if self._as_json:
            regions = {view.name: _told(view) for view in views}
            showing.print_json(
                {"event": "ready", "after_ms": round(seconds * 1000), "data_dir": str(self._data_dir), "regions": regions, "tokens": tokens}
            )
            return
        self._say(f"Ready after {seconds:.1f} s. Data, keys and logs are in {self._data_dir}.")
        for view in views:
            self._say(f"  {view.name:12} {view.url}  (API: {view.url}/docs)")
        for role, path in tokens.items():
            self._say(f"  {role:12} token: {path}")
        self._say("Type in another shell:")
        for line in self._next_words():
            self._say(f"  {line}")

    def _next_words(self) -> list[str]:
        place = f" --data-dir {self._data_dir}" if self._data_dir != Path(".laurel") else ""
        boards = [(board_id, board.policy) for board_id, board in self._config.boards.items()]
        if not boards:
            return [f"laurel board create my-game:solo:S1:global --policy best_score{place}", f"laurel status{place}"]
        board, policy = next((pair for pair in boards if pair[1] == "best_score"), boards[0])
        delta = " --delta" if policy == "cumulative" else ""
        return [f"laurel submit {board} p-ava 9700{delta}{place}", f"laurel top {board}{place}", f"laurel status{place}"]

    def _tell_late(self, views: list[RegionView]) -> None:
        late = [f"{view.name} ({'; '.join(view.missing) or view.word})" for view in views if not view.ready]
        print(f"laurel: still waiting for {', '.join(late)}; logs are in {self._data_dir}/<region>/log.", file=sys.stderr, flush=True)

    def _say(self, line: str) -> None:
        """A line for people; above the table where there is one."""
        if line and not self._as_json:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
            self._console.file.flush()


def up(*, config: ClusterConfig, config_file: Path, data_dir: Path, restricted: bool, as_json: bool) -> None:
    """Run all regions of `config`; with `restricted`, it is written to the data directory for the region's processes to read."""
    file = data_dir / "cluster.yaml" if restricted else config_file

    def prepare() -> None:
        if restricted:
            _write(file, yaml.safe_dump(config.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True))
        make_keys(data_dir, list(config.regions))

    Foreground(config=config, file=file, source=config_file, data_dir=data_dir, regions=list(config.regions), as_json=as_json).run(prepare)


def start_region(*, config: ClusterConfig, config_file: Path, data_dir: Path, region: str, as_json: bool) -> None:
    """Run one region; the keys must be there already, since all regions must hold the same."""

    def prepare() -> None:
        missing = [name for name in ("cluster.pub", "secret", f"region-{region}.token") if not (data_dir / "keys" / name).is_file()]
        if missing:
            raise StartError(
                f"{data_dir}/keys has no {' and no '.join(missing)}: "
                "run `laurel token init` once, on one machine, and copy its keys directory there."
            )

    Foreground(config=config, file=config_file, data_dir=data_dir, regions=[region], as_json=as_json).run(prepare)


def known_tokens(data_dir: Path) -> dict[str, str]:
    """Role -> absolute path of its token, of those that are there."""
    paths = {role: Path(os.path.abspath(data_dir)) / "tokens" / f"{role}.token" for role in ROLES}
    return {role: str(path) for role, path in paths.items() if path.is_file()}


def write_client_file(data_dir: Path, urls: dict[str, str]) -> None:
    """`client.json`, by which client commands find the regions and their tokens."""
    _write(data_dir / "client.json", json.dumps({"regions": urls, "tokens": known_tokens(data_dir)}, indent=1) + "\n")


def url_of(region: RegionConfig) -> str:
    """Where a client on this machine reaches the region's gateway."""
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(region.host, region.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{region.port}"


def _told(view: RegionView) -> dict[str, Any]:
    rows = showing.shard_rows({view.name: view.status})
    shards = {row["shard"]: {key: row[key] for key in row if key not in ("region", "shard")} for row in rows}
    return {"url": view.url, "state": view.word, "missing": list(view.missing), "restarts": view.restarts, "shards": shards}


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.touch(mode=0o600)
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Signals that end a command set `stop`, once and for good: a second one must not cut the stopping short."""

    def heard(number: int, frame: FrameType | None) -> None:
        stop.set()

    heeded = [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, heard) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
