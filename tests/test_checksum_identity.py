"""Checksum of a board and fingerprint of an event: what they tell apart, and their bytes for ever."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards.checksum import EMPTY, add, remove, row_hash
from boards.identity import FINGERPRINT_BYTES, fingerprint
from boards.model import Row, Status
from boards.numbers import decode_json, parse_value
from boards.times import parse_time

ROW = Row(9800, 1_764_496_800_000, 1_764_496_800_000, 1_764_496_800_250, 1_764_496_801_000, 1, "evt-001")

GOLDEN_ROW_HASH = 0x08313F4314CF9A5E
GOLDEN_FINGERPRINT = "16f020c75fb6068c2e29e88258859f8a"


# Checksum


def test_row_hash_is_the_one_that_journals_hold() -> None:
    assert row_hash("p-ava", ROW) == GOLDEN_ROW_HASH


@pytest.mark.parametrize(
    "change", [{"value": 9801}, {"value": -9800}, {"tie_ms": 0}, {"version": 2}, {"status": Status.INVALIDATED}], ids=str
)
def test_row_hash_covers_value_tie_moment_version_and_status(change: dict[str, int]) -> None:
    assert row_hash("p-ava", msgspec.structs.replace(ROW, **change)) != row_hash("p-ava", ROW)


def test_row_hash_covers_the_player_and_nothing_that_no_order_depends_on() -> None:
    assert row_hash("p-avb", ROW) != row_hash("p-ava", ROW)
    same = msgspec.structs.replace(ROW, updated_ms=5, last_event_id="other", submitted_ms=7)
    assert row_hash("p-ava", same) == row_hash("p-ava", ROW)


def test_row_hash_is_the_same_for_a_decoded_row() -> None:
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(ROW), type=Row)
    assert row_hash("p-ava", again) == row_hash("p-ava", ROW)


rows = st.builds(Row, *[st.integers(-(2**63), 2**63 - 1)] * 2, *[st.just(0)] * 3, st.integers(1, 9), st.just("e"))


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), st.tuples(rows, rows), max_size=8), st.integers(0, 99))
def test_checksum_of_changes_in_any_order_is_that_of_the_final_rows(board: dict[str, tuple[Row, Row]], seed: int) -> None:
    changes = list(board.items())
    checksum = EMPTY
    for player, (before, _) in changes:
        checksum = add(checksum, row_hash(player, before))
    random.Random(seed).shuffle(changes)
    for player, (before, after) in changes:
        checksum = add(remove(checksum, row_hash(player, before)), row_hash(player, after))
    whole = EMPTY
    for player, (_, after) in board.items():
        whole = add(whole, row_hash(player, after))
    assert checksum == whole
    assert 0 <= checksum < 2**64
    for player, (_, after) in board.items():
        checksum = remove(checksum, row_hash(player, after))
    assert checksum == EMPTY


# Fingerprint


def of_body(body: bytes, decimals: int = 0) -> tuple[str, bytes]:
    """Player and fingerprint of a single event, by the path that a gateway takes."""
    event = decode_json(body)
    times = {f"{name}_ms": parse_time(event[f"{name}_at"], name) if f"{name}_at" in event else None for name in ("achieved", "submitted")}
    return event["player_id"], fingerprint(kind="value", amount=parse_value(event["value"], decimals, "value"), **times)


def test_fingerprint_is_the_one_that_journals_hold() -> None:
    assert fingerprint(kind="value", amount=9700, achieved_ms=1_764_497_100_000, submitted_ms=None).hex() == GOLDEN_FINGERPRINT


def test_formatting_makes_no_difference_and_content_does() -> None:
    """LB-037: keys in another order, spaces, 100.0 for 100 are a replay; 120 is another content.

    Another player is another identity (board, player, event id), so it never meets this fingerprint.
    """
    first = of_body(b'{"event_id": "E1", "player_id": "ann", "value": 100, "achieved_at": "2025-11-30T10:00:00Z"}')
    for body in (
        b'{"achieved_at":"2025-11-30T10:00:00Z","value":100,"player_id":"ann","event_id":"E1"}',
        b' {"event_id" : "E1",\n"player_id":"ann", "value": 100.0, "achieved_at": "2025-11-30T10:00:00.000Z"} ',
        b'{"event_id": "E1", "player_id": "ann", "value": "100", "achieved_at": "2025-11-30T12:00:00+02:00"}',
    ):
        assert of_body(body) == first
    for body in (
        b'{"event_id": "E1", "player_id": "ann", "value": 120, "achieved_at": "2025-11-30T10:00:00Z"}',
        b'{"event_id": "E1", "player_id": "bob", "value": 100, "achieved_at": "2025-11-30T10:00:00Z"}',
        b'{"event_id": "E1", "player_id": "ann", "value": 100, "achieved_at": "2025-11-30T10:00:00.001Z"}',
        b'{"event_id": "E1", "player_id": "ann", "value": 100}',
    ):
        assert of_body(body) != first


moments = st.none() | st.integers(-3, 3)
contents = st.tuples(st.sampled_from(["value", "delta"]), st.integers(-3, 30), moments, moments)


@given(contents, contents)
def test_fingerprints_are_equal_exactly_when_the_content_is(
    a: tuple[str, int, int | None, int | None], b: tuple[str, int, int | None, int | None]
) -> None:
    prints = [fingerprint(kind=kind, amount=amount, achieved_ms=achieved, submitted_ms=sent) for kind, amount, achieved, sent in (a, b)]
    assert (prints[0] == prints[1]) == (a == b)
    assert {len(one) for one in prints} == {FINGERPRINT_BYTES}
