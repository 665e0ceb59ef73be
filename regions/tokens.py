"""Credentials: JSON Web Tokens signed with Ed25519, made by an operator's key and checked in every region.

TokenError          base: `code` is a row of `regions.problems`
KeyFileError        a key file cannot be used; the message says what to do
"""

import hashlib
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from boards.errors import InvalidInput
from boards.ids import check_player_id

Scope = Literal["game-server", "reader", "operator", "moderator", "region"]
SCOPES: tuple[str, ...] = get_args(Scope)

ALGORITHM = "EdDSA"
#: Who may read a board that is not public. A `region` token opens the links between regions only.
READERS: tuple[Scope, ...] = ("reader", "game-server", "operator", "moderator")
#: Longer ones are refused unread.
MAX_TOKEN_CHARS = 4096


class TokenError(Exception):
    """A token cannot be accepted, or not for this: missing_token, bad_token, expired_token, wrong_scope, foreign_game."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenError, (self.code, self.detail)


class KeyFileError(Exception):
    """A key file is missing, readable by others, or not an Ed25519 key."""


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """What a checked token says. `games` holds game names, or "*" for all.

    `player` binds a reader's token to one player, whose friends boards alone it may read.
    """

    sub: str
    scope: Scope
    games: frozenset[str]
    exp: int
    jti: str
    kid: str
    player: str | None = None

    def allows_game(self, game: str) -> bool:
        """Whether the token is for this game."""
        return "*" in self.games or game in self.games

    def require(self, scopes: tuple[Scope, ...], game: str | None) -> None:
        """Raise `TokenError` unless the token has one of `scopes` and is for `game`; "*" is for all games, None for any."""
        if self.scope not in scopes:
            raise TokenError("wrong_scope", f"This call needs the scope {' or '.join(scopes)}, the token has {self.scope}")
        if game is not None and not self.allows_game(game):
            wanted = "all games" if game == "*" else f"the game {game}"
            raise TokenError("foreign_game", f"The token is not for {wanted}")


class KeyPair:
    """A signing key; `kid` is derived from the public half, so it is the same wherever the key is loaded."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key()
        self.kid = key_id(self.public)

    @classmethod
    def generate(cls) -> "KeyPair":
        """A new key from the system's randomness."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> "KeyPair":
        """Read a key written by `save`. Raises `KeyFileError`."""
        try:
            if path.stat().st_mode & 0o077:
                raise KeyFileError(f"{path} can be read by others: run chmod 600 on it")
            private = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as exc:
            raise KeyFileError(f"{path} cannot be read as a private key: {exc}") from exc
        if not isinstance(private, Ed25519PrivateKey):
            raise KeyFileError(f"{path} holds another kind of key than Ed25519")
        return cls(private)

    def save(self, path: Path) -> None:
        """Write the private key for the owner's eyes only, in one step: a reader sees the old file or the whole new one."""
        pem = self._private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(pem)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError as exc:
            fresh.unlink(missing_ok=True)
            raise KeyFileError(f"{path} cannot be written: {exc.strerror}") from exc

    def public_pem(self) -> str:
        """The public half, to be handed to `public_keys` wherever tokens are checked."""
        return self.public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()

    def issue(
        self,
        sub: str,
        scope: Scope,
        games: Iterable[str],
        ttl_s: int,
        *,
        now_s: float | None = None,
        jti: str | None = None,
        player: str | None = None,
    ) -> str:
        """A token for `sub`, good for `ttl_s` seconds. `games` may hold "*". Raises ValueError for claims that would be refused.

        `player` binds it to one player; only a reader's token may be bound.
        """
        if scope not in SCOPES:
            raise ValueError(f"scope must be one of {', '.join(SCOPES)}")
        listed = sorted(set(games))
        if not sub or not listed or ttl_s <= 0:
            raise ValueError("a token needs a subject, at least one game (or *) and a positive life")
        if player is not None and (scope != "reader" or not _is_player(player)):
            raise ValueError("a token may be bound to a player, by a player's id, if its scope is reader")
        issued = int(time.time() if now_s is None else now_s)
        claims: dict[str, Any] = {
            "sub": sub, "scope": scope, "games": listed, "iat": issued, "exp": issued + ttl_s, "jti": jti or secrets.token_hex(8)
        }  # fmt: skip
        if player is not None:
            claims["player"] = player
        return jwt.encode(claims, self._private, algorithm=ALGORITHM, headers={"kid": self.kid})


def key_id(public: Ed25519PublicKey) -> str:
    """Name of a key: the first 16 hex digits of the SHA-256 of its raw public bytes."""
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def public_keys(pems: Iterable[str]) -> dict[str, Ed25519PublicKey]:
    """Public keys by their id. Raises `KeyFileError` when one is not an Ed25519 key."""
    found = {}
    for pem in pems:
        try:
            key = serialization.load_pem_public_key(pem.encode())
        except (ValueError, TypeError) as exc:
            raise KeyFileError(f"not a public key: {exc}") from exc
        if not isinstance(key, Ed25519PublicKey):
            raise KeyFileError("another kind of public key than Ed25519")
        found[key_id(key)] = key
    return found


class TokenVerifier:
    """Checks tokens against public keys, and remembers the good ones until they expire.

    A first check costs about 80 µs, a repeated one below 1 µs. At most `cache_size` are remembered,
    the least recently used go first. Only good ones are: garbage cannot push them out.
    """

    def __init__(
        self,
        keys: Mapping[str, Ed25519PublicKey],
        *,
        clock: Callable[[], float] = time.time,
        cache_size: int = 10_000,
    ) -> None:
        self._keys = dict(keys)
        self._clock = clock
        self._cache_size = cache_size
        self._checked: OrderedDict[str, Claims] = OrderedDict()

    def verify(self, token: str) -> Claims:
        """The claims of a good token. Raises `TokenError`."""
        claims = self._checked.get(token)
        if claims is None:
            claims = self._check(token)
            if claims.exp > self._clock():
                self._checked[token] = claims
                if len(self._checked) > self._cache_size:
                    self._checked.popitem(last=False)
        else:
            self._checked.move_to_end(token)
        if claims.exp <= self._clock():
            self._checked.pop(token, None)
            raise TokenError("expired_token", "The token has expired: ask for a new one")
        return claims

    def verify_header(self, authorization: str | None) -> Claims:
        """The claims of an `Authorization` header's value. Raises `TokenError`."""
        if authorization is None:
            raise TokenError("missing_token", "Send the header Authorization: Bearer <token>")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise TokenError("bad_token", "The Authorization header must be: Bearer <token>")
        return self.verify(token.strip())

    def _check(self, token: str) -> Claims:
        if len(token) > MAX_TOKEN_CHARS:
            raise TokenError("bad_token", f"The token is longer than {MAX_TOKEN_CHARS} characters")
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(kid) if isinstance(kid, str) else None
            if key is None or not isinstance(kid, str):
                raise TokenError("bad_token", "The token is signed by a key that this region does not know")
            claims = jwt.decode(
                token,
                key,
                # Pinned: the header's own word on the algorithm decides nothing.
                algorithms=[ALGORITHM],
                # The times are compared below, by this verifier's clock.
                options={
                    "require": ["sub", "exp", "jti"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                },
            )
        except jwt.InvalidTokenError as exc:
            raise TokenError("bad_token", f"The token cannot be accepted: {exc}") from exc
        return _claims(claims, kid, self._clock())


def _claims(raw: dict[str, Any], kid: str, now_s: float) -> Claims:
    scope, games, exp, nbf = raw.get("scope"), raw.get("games"), raw["exp"], raw.get("nbf", 0)
    if scope not in SCOPES:
        raise TokenError("bad_token", f"The token's scope must be one of {', '.join(SCOPES)}")
    if not isinstance(games, list) or not games or not all(isinstance(game, str) and game for game in games):
        raise TokenError("bad_token", "The token's games must be a list of names, or *")
    # bool is an int, and a far too large exp would never expire from the cache either way.
    if type(exp) is not int or type(nbf) not in (int, float):
        raise TokenError("bad_token", "The token's exp must be a number of whole seconds")
    if nbf > now_s:
        raise TokenError("bad_token", "The token is not valid yet")
    if not isinstance(raw["jti"], str) or not raw["sub"]:
        raise TokenError("bad_token", "The token's jti and sub must be text")
    player = raw.get("player")
    if "player" in raw and (scope != "reader" or not _is_player(player)):
        raise TokenError("bad_token", "The token's player must be a player's id, and its scope reader")
    return Claims(sub=raw["sub"], scope=scope, games=frozenset(games), exp=exp, jti=raw["jti"], kid=kid, player=player)


def _is_player(text: object) -> bool:
    try:
        check_player_id(text)
    except InvalidInput:
        return False
    return True
