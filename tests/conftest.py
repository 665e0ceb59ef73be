"""Rules for all tests: unit tests do no I/O with the world, and run first."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NoReturn
from unittest import mock

import pytest
from hypothesis import settings

sys.path.insert(0, os.path.dirname(__file__))  # helper modules beside the tests

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")

#: Markers of tests that may open sockets, cheapest first; a test without any of them is a unit test.
STAGES = ("net", "store", "cluster")


def _stage(item: pytest.Item) -> int:
    return max((STAGES.index(marker.name) + 1 for marker in item.iter_markers() if marker.name in STAGES), default=0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever can fail without a server or Ray fails before they start."""
    items.sort(key=_stage)


@pytest.fixture(autouse=True)
def no_world_in_unit_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a unit test that opens a socket or starts Ray, also where the code under test swallows errors."""
    if _stage(request.node):
        yield
        return
    tried: list[str] = []

    def refuse(what: str) -> Callable[..., NoReturn]:
        def refused(*args: Any, **_: Any) -> NoReturn:
            tried.append(f"{what}{args[1:] if what.startswith('socket') else ''}")
            pytest.fail(f"a unit test called {tried[-1]}; mark it `net`, `store` or `cluster` if it must", pytrace=True)

        return refused

    with ExitStack() as stack:
        for name in ("bind", "connect", "connect_ex"):
            stack.enter_context(mock.patch.object(socket.socket, name, refuse(f"socket.{name}")))
        if "ray" in sys.modules:
            stack.enter_context(mock.patch.object(sys.modules["ray"], "init", refuse("ray.init")))
        yield
    if tried:
        pytest.fail(f"a unit test called {', '.join(tried)}", pytrace=False)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Three running regions (see `running_cluster`), shared by all tests of the session; each test takes a fresh board."""
    from running_cluster import RunningCluster

    with RunningCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
