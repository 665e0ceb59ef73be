"""Scratch clusters: free ports below the kernel's own, addresses and boards as they were asked for."""

import itertools
import socket
from pathlib import Path

import pytest

from config.loading import load_cluster
from config.models import ConfigError
from regions import scratch

pytestmark = pytest.mark.net


def test_ports_are_free_different_and_below_those_of_the_kernel() -> None:
    with socket.socket() as taken:
        port = next(scratch.free_ports())
        taken.bind(("127.0.0.1", port))
        given = list(itertools.islice(scratch.free_ports(), 500))
        assert port not in scratch.free_ports()
    assert len(set(given)) == 500
    assert all(20_000 <= port < 32_000 for port in given)


def test_a_placed_cluster_is_the_repository_s_own_on_other_ports_with_keys_and_tokens(tmp_path: Path) -> None:
    placed = scratch.place(tmp_path / "data")
    own = load_cluster(scratch.CLUSTER_FILE)
    assert placed.config == load_cluster(placed.path)
    assert placed.regions == list(own.regions)
    assert placed.config.boards == own.boards
    ports = [p for region in placed.config.regions.values() for p in (region.port, region.store.port, region.link.port)]
    assert len(set(ports)) == 9
    assert placed.urls["eu-west"] == f"http://127.0.0.1:{placed.config.regions['eu-west'].port}"
    assert placed.token("operator").count(".") == 2


def test_regions_get_the_addresses_and_the_cluster_the_keys_that_were_asked_for(tmp_path: Path) -> None:
    placed = scratch.place(tmp_path, hosts={"us-east": "10.1.2.3"}, changes={"boards": {}, "limits": {"ack_timeout_ms": 900}})
    region = placed.config.regions["us-east"]
    assert (region.host, region.link.host) == ("10.1.2.3", "10.1.2.3")
    assert placed.config.regions["eu-west"].host == "127.0.0.1"
    assert placed.config.boards == {}
    assert placed.config.limits.ack_timeout_ms == 900


def test_a_change_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ack_timeout_ms"):
        scratch.place(tmp_path, changes={"limits": {"ack_timeout_ms": 1}})
