"""The table of ids: exact for any text, the same with and without compiled look-ups, and growing without a long step."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import boards.players as players_module
from boards import compiled
from boards.players import NOWHERE, Ids, Players, hash_of, hashes_of, texts_of, words_of

texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
    st.sampled_from(["", "a", "b", "x" * 7, "x" * 8, "x" * 9, "x" * 16, "x" * 128, "x" * 300, "é", "\U0001f600"]),
)


@pytest.fixture(params=[False, True], ids=["numpy", "compiled"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assert compiled.load(), compiled.reason
    if not request.param:
        monkeypatch.setattr(compiled, "kernels", None)
    yield


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(texts, unique=True, max_size=40), chunk_bits=st.sampled_from([3, 5, 22]), strangers=st.lists(texts, max_size=5))
def test_every_id_is_found_and_nothing_else(ids: list[str], chunk_bits: int, strangers: list[str]) -> None:
    assert compiled.load(), compiled.reason
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(players_module, "_CHUNK_BITS", chunk_bits)
        patch.setattr(players_module, "_MOVED_AT_LEAST", 1)
        players = Players()
        half = len(ids) // 2
        for some in (ids[:half], ids[half:], ids):
            players.admit(some)
        assert players.find(ids).tolist() == list(range(len(ids))) == [players.find_one(player_id) for player_id in ids]
        assert compiled.find_slots(players, Ids(ids)).tolist() == list(range(len(ids)))
        assert players.names(np.arange(len(ids))) == ids
        asked = [text for text in strangers if text not in ids]
        assert players.find(asked).tolist() == [NOWHERE] * len(asked) == compiled.find_slots(players, Ids(asked)).tolist()


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(texts, min_size=1, max_size=20), other=texts)
def test_words_keep_ids_whole_and_in_the_order_of_their_bytes(ids: list[str], other: str) -> None:
    words = words_of(ids)
    assert texts_of(words) == ids
    players = Players()
    slots = players.admit(list(dict.fromkeys(ids)))
    compared = players.compare(slots, np.repeat(words_of([other]), slots.size, axis=0)).tolist()
    expected = [(one.encode() > other.encode()) - (one.encode() < other.encode()) for one in dict.fromkeys(ids)]
    assert compared == expected


def test_padding_does_not_change_a_hash_and_one_id_hashes_as_many_do() -> None:
    alone, among = words_of(["player"]), words_of(["player", "x" * 100])
    assert hashes_of(alone)[0] == hashes_of(among)[0] == hash_of(alone[0].tolist())


def test_a_zero_character_is_refused_and_nobody_is_registered() -> None:
    players = Players()
    for use in (lambda: players.admit(["a", "b\0"]), lambda: players.find(["b\0", "a"]), lambda: players.find_one("b\0")):
        with pytest.raises(ValueError, match=r"U\+0000"):
            use()
    assert len(players) == 0


def test_thirty_thousand_ids_through_every_growth(kernels: None) -> None:
    players = Players()
    ids = [f"player-{i}" for i in range(30_000)]
    for start in range(0, 30_000, 700):
        players.admit(ids[start : start + 700])
        known = min(start + 700, 30_000)
        asked = ids[:known:501] + ids[known : known + 3]
        expected = [*range(0, known, 501), *([NOWHERE] * len(ids[known : known + 3]))]
        assert compiled.find_slots(players, Ids(asked)).tolist() == expected
    assert compiled.find_slots(players, Ids(ids)).tolist() == list(range(30_000))


def test_a_call_moves_a_bounded_part_of_a_table_that_grew(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    insert = players_module._insert

    def watched(table: np.ndarray[tuple[int], np.dtype[np.int32]], hashes: players_module.Words, slots: players_module.Slots) -> None:
        moved.append(slots.size)
        insert(table, hashes, slots)

    monkeypatch.setattr(players_module, "_insert", watched)
    players = Players()
    players.admit([f"p{i}" for i in range(98_000)])
    moved.clear()
    players.admit([f"q{i}" for i in range(1000)])  # the table is full and is replaced
    assert sum(moved) == 1000 + players_module._MOVED_AT_LEAST
    for step in range(6):
        players.admit([f"r{step}"])
    assert players.parts[3] is None
    assert players.find(["p0", "p97999", "q999", "r5", "r6"]).tolist() == [0, 97_999, 98_999, 99_005, NOWHERE]


def test_an_id_takes_about_25_bytes_beside_its_own() -> None:
    players = Players()
    players.admit([f"player-{i:09d}" for i in range(90_000)])
    assert players.nbytes / 90_000 < 16 + 4 + 131_072 * 4 / 90_000 + 12
