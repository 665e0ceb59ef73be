"""Credentials: what is accepted, what is refused, and how key files are kept."""

import stat
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from regions.tokens import KeyFileError, KeyPair, TokenError, TokenVerifier, public_keys

KEYS = KeyPair.generate()
NOW_S = 1_800_000_000


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = float(NOW_S)

    def __call__(self) -> float:
        return self.now_s


def verifier(clock: Clock | None = None, **options: Any) -> TokenVerifier:
    return TokenVerifier(public_keys([KEYS.public_pem()]), clock=clock or Clock(), **options)


def signed(private: Any, algorithm: str = "EdDSA", kid: str | None = KEYS.kid, **changes: Any) -> str:
    claims = {"sub": "server", "scope": "reader", "games": ["g"], "exp": NOW_S + 60, "jti": "j1", **changes}
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode({name: value for name, value in claims.items() if value is not None}, private, algorithm=algorithm, headers=headers)


def refusal(token: str) -> str:
    with pytest.raises(TokenError) as caught:
        verifier().verify(token)
    return caught.value.code


def test_an_issued_token_says_what_was_asked_for() -> None:
    claims = verifier().verify(KEYS.issue("server-1", "game-server", ["arena", "kart"], 3600, now_s=NOW_S, jti="j7"))
    assert (claims.sub, claims.scope, claims.games) == ("server-1", "game-server", frozenset({"arena", "kart"}))
    assert (claims.exp, claims.jti, claims.kid) == (NOW_S + 3600, "j7", KEYS.kid)


def test_a_token_of_another_key_is_refused_also_under_our_key_id() -> None:
    stranger = Ed25519PrivateKey.generate()
    assert refusal(signed(stranger)) == "bad_token"
    assert refusal(KeyPair(stranger).issue("s", "reader", ["g"], 60, now_s=NOW_S)) == "bad_token"


def test_the_algorithm_is_not_the_tokens_choice() -> None:
    assert refusal(signed(None, "none")) == "bad_token"
    # The public key is no secret: taken as one, it would make anyone an issuer.
    assert refusal(signed(KEYS.public.public_bytes_raw(), "HS256")) == "bad_token"


def own(**changes: Any) -> str:
    return signed(KEYS._private, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"scope": "root"}, {"scope": None}, {"games": None}, {"games": []}, {"games": "g"}, {"games": [7]}, {"sub": None}, {"sub": ""},
        {"jti": None}, {"exp": None}, {"exp": True}, {"exp": NOW_S + 0.5}, {"nbf": NOW_S + 5}, {"nbf": "x"},
        {"kid": None}, {"kid": "other"},
    ],
)  # fmt: skip
def test_a_signed_token_with_a_missing_or_odd_claim_is_refused(changes: dict[str, Any]) -> None:
    assert refusal(own(**changes)) == "bad_token"


@pytest.mark.parametrize("token", ["x", "a.b.c", "", "é", "." * 5000, KEYS.issue("s", "reader", ["g"], 60, now_s=NOW_S)[:-4]])
def test_what_is_no_token_is_refused(token: str) -> None:
    assert refusal(token) == "bad_token"


def test_an_expired_token_is_refused_also_when_it_was_good_a_moment_ago() -> None:
    clock = Clock()
    checker, token = verifier(clock), KEYS.issue("s", "reader", ["g"], 60, now_s=NOW_S)
    assert checker.verify(token) is checker.verify(token), "the second time it comes from memory"
    clock.now_s = NOW_S + 60
    for _ in range(2):
        with pytest.raises(TokenError) as caught:
            checker.verify(token)
        assert caught.value.code == "expired_token"


def test_memory_of_checked_tokens_is_bounded_and_bad_ones_take_no_place() -> None:
    checker = verifier(cache_size=2)
    tokens = [KEYS.issue(f"s{number}", "reader", ["g"], 60, now_s=NOW_S) for number in range(3)]
    first = checker.verify(tokens[0])
    checker.verify(tokens[1])
    for number in range(10):
        with pytest.raises(TokenError):
            checker.verify(f"garbage-{number}")
    assert checker.verify(tokens[0]) is first
    checker.verify(tokens[2])
    assert checker.verify(tokens[0]) is first, "the least recently used one had to go"
    assert len(checker._checked) == 2


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "token"])
def test_a_header_that_is_no_bearer_is_a_bad_token(header: str) -> None:
    with pytest.raises(TokenError) as caught:
        verifier().verify_header(header)
    assert caught.value.code == "bad_token"


def test_no_header_is_a_missing_token() -> None:
    with pytest.raises(TokenError) as caught:
        verifier().verify_header(None)
    assert caught.value.code == "missing_token"


def test_scope_and_game_are_both_required() -> None:
    claims = verifier().verify(KEYS.issue("s", "game-server", ["arena"], 60, now_s=NOW_S))
    claims.require(("game-server",), "arena")
    with pytest.raises(TokenError) as scope:
        claims.require(("operator",), "arena")
    with pytest.raises(TokenError) as game:
        claims.require(("game-server",), "kart")
    with pytest.raises(TokenError) as every:
        claims.require(("game-server",), "*")
    assert [caught.value.code for caught in (scope, game, every)] == ["wrong_scope", "foreign_game", "foreign_game"]
    verifier().verify(KEYS.issue("s", "operator", ["*"], 60, now_s=NOW_S)).require(("operator",), "kart")


@pytest.mark.parametrize("wrong", [{"scope": "root"}, {"games": []}, {"sub": ""}, {"ttl_s": 0}])
def test_no_token_is_issued_that_would_be_refused(wrong: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"sub": "s", "scope": "reader", "games": ["g"], "ttl_s": 60, **wrong}
    with pytest.raises(ValueError, match=r"scope must be|a token needs"):
        KEYS.issue(**asked)


def test_a_key_file_is_for_its_owner_only_and_survives(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    KEYS.save(path)
    KEYS.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["signing.pem"]
    again = KeyPair.load(path)
    assert again.kid == KEYS.kid
    assert verifier().verify(again.issue("s", "reader", ["g"], 60, now_s=NOW_S)).sub == "s"


def test_a_key_file_that_cannot_be_trusted_or_read_says_why(tmp_path: Path) -> None:
    path = tmp_path / "signing.pem"
    with pytest.raises(KeyFileError, match="cannot be read"):
        KeyPair.load(path)
    KEYS.save(path)
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        KeyPair.load(path)
    path.chmod(0o600)
    path.write_text("nonsense")
    with pytest.raises(KeyFileError, match="cannot be read"):
        KeyPair.load(path)
    with pytest.raises(KeyFileError, match="not a public key"):
        public_keys(["nonsense"])
    with pytest.raises(KeyFileError, match="cannot be written"):
        KEYS.save(tmp_path / "missing" / "signing.pem")
