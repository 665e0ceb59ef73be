"""What clients may send: ids, values, JSON bodies and times, each with what is refused and by which name."""

import json
import pickle
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards.errors import InvalidInput
from boards.ids import check_board_id, check_event_id, check_player_id
from boards.model import VALUE_MAX, VALUE_MIN
from boards.numbers import NumberText, decode_json, format_value, parse_value
from boards.times import TIME_MAX_MS, TIME_MIN_MS, format_time, parse_time


def refusal(call: Any, *arguments: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        call(*arguments)
    return caught.value


def test_refusal_survives_pickling_and_says_what_is_allowed() -> None:
    error = refusal(parse_value, "x", 2, "delta")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is InvalidInput
    assert (again.code, again.field, again.allowed, again.definite, str(again)) == (
        "not_a_number",
        "delta",
        "a JSON number or decimal text with at most 2 fraction digits and without an exponent",
        True,
        "delta must be a JSON number or decimal text with at most 2 fraction digits and without an exponent.",
    )


# Ids


@pytest.mark.parametrize("board", ["arena-clash:solo:S7:global", "a:b:c:d", "g_1:m.x:Season-7:eu_west", ".:..:.:-"])
def test_board_id_of_four_parts_is_taken(board: str) -> None:
    assert check_board_id(board) == board


@pytest.mark.parametrize(
    "board",
    [
        "",
        "a:b:c",
        "a:b:c:d:e",
        "a::c:d",
        ":b:c:d",
        "a:b:c:",
        "A:b:c:d",
        "a:B:c:d",
        "a:b:c:D",
        "a:b:c:d\n",
        " a:b:c:d",
        "a/b:b:c:d",
        "é:b:c:d",
        None,
        7,
    ],
)
def test_other_board_id_is_refused(board: object) -> None:
    assert refusal(check_board_id, board).field == "board"


@pytest.mark.parametrize(
    "text",
    [
        "p-ava",
        "a",
        "76561198122624102",
        "...",
        "a.b",
        ".a",
        "a b",
        "a:b@c%2F#?&=+",
        "é",
        "e\u0301",
        "Ann",
        "\u0430nn",
        "名前",
        "\U0001f3c1",
        "x" * 128,
        "é" * 64,
        "a\u3000b",
    ],
)
def test_player_and_event_ids_are_exact_text(text: str) -> None:
    assert check_player_id(text) is text
    assert check_event_id(text) is text


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", " a", "a ", " ", "a/b", "/", "é/b", "a\n", "\na", "a\tb", "a\x00b", "a\x7f", "\x1f", "é\x85é", "é\x9f",
        "é\x7f", "é\n", "é ", " é", "é\u00a0", "\u3000é", "é\u2028", "x" * 129, "é" * 65, "x" * 127 + "é", "\ud800", "é\udfff",
        None, 7, 1.5, True, b"a", ["a"], NumberText("1.5"),
    ],
)  # fmt: skip
def test_other_player_id_is_refused_by_its_field(text: object) -> None:
    assert refusal(check_player_id, text).field == "player_id"
    assert refusal(check_event_id, text).field == "event_id"


def test_look_alike_ids_are_different_ids_and_bad_ones_are_refused() -> None:
    """LB-106: exact bytes. Case, script and Unicode form make different ids; "ann " and the rest are refused."""
    distinct = ["Ann", "ann", "\u0430nn", "\u00e9", "e\u0301", "%2F"]
    assert len({check_player_id(text).encode() for text in distinct}) == len(distinct)
    for text in ("ann ", "x" * 256, "", "a/b", "a\nb"):
        assert refusal(check_player_id, text).code == "bad_id"


@given(st.text(max_size=6) | st.text(alphabet="aé./ \x7f\x85\u3000", max_size=6))
def test_fast_path_and_plain_rule_agree(text: str) -> None:
    encoded = text.encode("utf-8", "surrogatepass")
    control = any(ord(letter) < 0x20 or 0x7F <= ord(letter) < 0xA0 for letter in text)
    surrogate = any(0xD800 <= ord(letter) < 0xE000 for letter in text)
    good = 1 <= len(encoded) <= 128 and not control and not surrogate and "/" not in text
    good = good and text == text.strip() and text not in (".", "..")
    try:
        assert check_player_id(text) == text
    except InvalidInput:
        assert not good
    else:
        assert good


# Values


@pytest.mark.parametrize(
    ("raw", "decimals", "value"),
    [
        (5, 0, 5),
        (5, 2, 500),
        ("5", 2, 500),
        ("12.5", 2, 1250),
        (NumberText("12.5"), 2, 1250),
        (NumberText("12.50"), 2, 1250),
        ("12.500000000000000000000", 2, 1250),
        ("100.0", 0, 100),
        (NumberText("100.0"), 0, 100),
        (0, 9, 0),
        ("-0", 0, 0),
        (NumberText("-0.0"), 3, 0),
        ("-12.34", 2, -1234),
        ("-0.01", 2, -1),
        (VALUE_MAX, 0, VALUE_MAX),
        (VALUE_MIN, 0, VALUE_MIN),
        ("9223372036854775807", 0, VALUE_MAX),
        ("-9223372036854775808", 0, VALUE_MIN),
        ("9223372036.854775807", 9, VALUE_MAX),
        ("-9223372036.854775808", 9, VALUE_MIN),
        (9007199254740993, 0, 9007199254740993),
    ],
)
def test_spelling_of_a_value_does_not_matter(raw: object, decimals: int, value: int) -> None:
    parsed = parse_value(raw, decimals, "value")
    assert parsed == value
    assert type(parsed) is int


@pytest.mark.parametrize(
    "raw",
    [
        None, True, False, "", " ", "n/a", "NaN", "Infinity", "-Infinity", "1e5", "1E400", "1e-2", "1_000", "12,5", "1,000",
        "+5", " 5", "5 ", "5\n", ".5", "5.", "-", "--5", "05", "-05", "0x10", "٣", "\uff15", "1.٣", "½", "1.2.3", [], {}, [5],
        b"5", 12.5, 5.0, float("nan"), Decimal(5), NumberText("1e5"), NumberText("NaN"), NumberText("Infinity"),
        NumberText("-Infinity"),
    ],
)  # fmt: skip
def test_what_is_not_a_number_is_refused_by_its_field(raw: object) -> None:
    """LB-023 (null, "", "n/a") and LB-030 (NaN, infinities, 1e999): 422 with the field, in both directions."""
    error = refusal(parse_value, raw, 2, "value")
    assert (error.code, error.field, error.definite) == ("not_a_number", "value", True)


@pytest.mark.parametrize(("raw", "decimals"), [("12.345", 2), ("0.1", 0), (NumberText("35608.7437"), 0), ("1.0000000001", 9)])
def test_more_digits_than_the_board_keeps_are_refused_and_never_rounded(raw: str, decimals: int) -> None:
    """LB-033: a fraction of a millisecond is refused."""
    assert refusal(parse_value, raw, decimals, "value").code == "too_precise"


@pytest.mark.parametrize(
    ("raw", "decimals"),
    [
        (VALUE_MAX + 1, 0),
        (VALUE_MIN - 1, 0),
        (VALUE_MAX, 1),
        ("9223372036854775808", 0),
        ("92233720368547758.08", 2),
        (10**400, 0),
        ("1" * 5000, 0),
        (NumberText("9" * 5000 + ".5"), 1),
    ],
)
def test_value_beyond_64_bits_is_out_of_range(raw: object, decimals: int) -> None:
    assert refusal(parse_value, raw, decimals, "value").code == "out_of_range"


@given(st.integers(VALUE_MIN, VALUE_MAX), st.integers(0, 9))
def test_formatted_value_reads_back_exactly(value: int, decimals: int) -> None:
    text = format_value(value, decimals)
    assert parse_value(text, decimals, "value") == value
    assert Decimal(text).scaleb(decimals) == value


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (9800, 0, "9800"),
        (1250, 2, "12.50"),
        (-1, 2, "-0.01"),
        (0, 2, "0.00"),
        (22_995, 3, "22.995"),
        (59_999, 3, "59.999"),
        (VALUE_MIN, 9, "-9223372036.854775808"),
    ],
)
def test_formatting_shows_every_digit(value: int, decimals: int, text: str) -> None:
    """LB-032: nothing is rounded or carried, so 59.999 never becomes 60."""
    assert format_value(value, decimals) == text


def test_tenths_add_up_exactly() -> None:
    """LB-027: +0.1 ten times is one +1.0; +0.1 and -0.1 is nothing."""
    tenth = parse_value(NumberText("0.1"), 1, "delta")
    assert tenth * 10 == parse_value(NumberText("1.0"), 1, "delta")
    assert tenth + parse_value("-0.1", 1, "delta") == 0


def test_values_that_differ_behind_the_second_digit_stay_distinct() -> None:
    """LB-031."""
    a, b, c = (parse_value(NumberText(text), 5, "value") for text in ("0.99412", "0.99408", "0.9949"))
    assert c > a > b


# JSON bodies


def test_numbers_of_a_body_keep_every_digit() -> None:
    body = b'[{"value": 12.50, "a": 0.1000000000000000055511151231257827}, {"value": 123456789012345678901234567890}, {"value": -0}]'
    first, second, third = decode_json(b'{"events": ' + body + b"}")["events"]
    assert first == {"value": "12.50", "a": "0.1000000000000000055511151231257827"}
    assert type(first["value"]) is NumberText
    assert second == {"value": 123456789012345678901234567890}
    assert third == {"value": 0}


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 5000, b'"NaN"', b"null", b"true", b'"\\ud800"'])
def test_odd_value_reaches_the_check_of_its_field_and_spares_the_batch(literal: bytes) -> None:
    """LB-030: the field is named, and the other event of the batch is unharmed."""
    odd, good = decode_json(b'{"events": [{"value": ' + literal + b'}, {"value": 7.5}]}')["events"]
    assert refusal(parse_value, odd["value"], 1, "value").field == "value"
    assert parse_value(good["value"], 1, "value") == 75


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"[1,]", b"{'a': 1}", b'{"a": 01}', b'{"a": .5}', b'{"a": 5.}', b'{"a": +5}', b'{"a": 1} x', b'"\xff"',
        b"\xef\xbb\xbf{}", '{"a": 1}'.encode("utf-16"), b'"a\nb"', b"nan", b"[" * 200_000, b'{"a":' * 200_000,
        b'[{"":' * 100_000, b"[" * 200_000 + b"]" * 200_000,
    ],
    ids=range(19),
)  # fmt: skip
def test_malformed_or_bottomless_body_is_bad_json(body: bytes) -> None:
    assert refusal(decode_json, body).code == "bad_json"


@pytest.mark.parametrize(
    "body",
    [
        b'{"value": 1, "value": 2}',
        b'{"value": 1, "value": 1}',
        b'{"value": 1, "value" : 2}',
        b'{"value": 1, "value"\t\r\n:2}',
        b'{"events": [{"value": 1, "value": 2}]}',
        b'{"events": [{"value"\t:\r\n 1, "other": 3, "value" : 2}]}',
        b'{"value": 1, "\\u0076alue": 2}',
        b'[{"a": 1, "a": 2}]',
        b'{"a": {"b": {"c": 1, "c": 2}}}',
        b'{"a": [[{"c": 1, "c": 2}]]}',
        b'{"a": NaN, "a": 1}',
    ],
)
def test_key_given_twice_is_bad_json(body: bytes) -> None:
    assert refusal(decode_json, body).code == "bad_json"


@pytest.mark.parametrize(
    "document", [{"a": '":":"'}, {'":': 1, " : ": [{"x": '" :'}]}, [{"a": 1}, {"a": 2}], {"a": {"a": {"a": 1}}}, 5, "x", [], {}]
)
def test_text_that_looks_like_keys_is_not_taken_for_them(document: object) -> None:
    assert decode_json(json.dumps(document).encode()) == document


json_documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec="utf-8"), max_size=4)
    | st.sampled_from(['":', '"', ":", '\\":']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(json_documents, st.sampled_from([None, 1]), st.sampled_from([(",", ":"), (" , ", " : ")]), st.booleans())
def test_every_document_without_repeated_keys_is_read_as_it_was_written(
    document: object, indent: int | None, separators: tuple[str, str], ascii_only: bool
) -> None:
    assert decode_json(json.dumps(document, indent=indent, separators=separators, ensure_ascii=ascii_only).encode()) == document


# Times


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-30T10:05:00Z", 1_796_033_100_000),
        ("2026-11-30T10:05:00.25Z", 1_796_033_100_250),
        ("2026-11-30t10:05:00.250z", 1_796_033_100_250),
        ("2026-11-30T12:05:00+02:00", 1_796_033_100_000),
        ("2026-11-30T04:35:00-05:30", 1_796_033_100_000),
        ("2026-11-30T10:05:00-00:00", 1_796_033_100_000),
        ("2026-11-30T10:05:00.9999999999Z", 1_796_033_100_999),
        ("1969-12-31T23:59:59.9995Z", -1),
        ("1969-12-31T23:59:59.0009Z", -1000),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("0001-01-01T00:00:00Z", TIME_MIN_MS),
        ("9999-12-31T23:59:59.999Z", TIME_MAX_MS),
        ("9999-12-31T23:59:59.9999-00:00", TIME_MAX_MS),
    ],
)
def test_time_is_read_to_the_millisecond_toward_the_past(text: str, instant: int) -> None:
    assert parse_time(text, "achieved_at") == instant


@pytest.mark.parametrize(
    "text",
    [
        "", "2026-11-30", "2026-11-30T10:05:00", "2026-11-30 10:05:00Z", "2026-11-30T10:05Z", "20261130T100500Z",
        "2026-W49-1T10:05:00Z", "2026-334T10:05:00Z", "2026-11-30T10:05:00,5Z", "2026-11-30T10:05:00.Z",
        "2026-11-30T10:05:00+0200", "2026-11-30T10:05:00+02", "2026-11-30T10:05:00+24:00", "2026-11-30T10:05:00+02:60",
        "2026-11-30T10:05:00+02:00:30", "2026-11-30T24:00:00Z", "2026-11-30T23:60:00Z", "2026-12-31T23:59:60Z",
        "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z", "2026-11-00T00:00:00Z", "0000-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z", "-001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01",
        "2026-11-30T10:05:00Z\n", " 2026-11-30T10:05:00Z", "\uff12026-11-30T10:05:00Z", "now", None, 1_796_033_100, 1.5, True,
        NumberText("1796033100.5"),
    ],
)  # fmt: skip
def test_time_without_offset_or_of_another_form_is_refused(text: object) -> None:
    error = refusal(parse_time, text, "achieved_at")
    assert (error.code, error.field) == ("bad_time", "achieved_at")


@given(st.integers(TIME_MIN_MS, TIME_MAX_MS))
def test_formatted_time_reads_back_exactly(instant: int) -> None:
    text = format_time(instant)
    assert len(text) == len("2026-11-30T10:05:00.000Z")
    assert parse_time(text, "achieved_at") == instant


def test_formatted_times_sort_as_the_instants_do() -> None:
    instants = [TIME_MIN_MS, -1, 0, 1, 1_796_033_100_000, TIME_MAX_MS]
    assert sorted(map(format_time, instants)) == [format_time(instant) for instant in instants]


def test_local_zone_makes_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    before = parse_time("2026-07-01T00:30:00Z", "achieved_at"), format_time(0)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert (parse_time("2026-07-01T00:30:00Z", "achieved_at"), format_time(0)) == before
    finally:
        monkeypatch.undo()
        time.tzset()
