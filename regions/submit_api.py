"""Submitting events: from the bytes of a request to one result for each event.

`parse_events` is the hot part: everything an event may get wrong is found here, before anything is asked
of the authority, and a bad event never stops the good ones of its batch.
"""

import asyncio
import difflib
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import ClientDisconnect, Request

from actors.messages import Answer, Ask, BoardInfo, NoAuthority, NotVisibleYet, Ranks, SubmitResult, Unanswered
from boards.errors import InvalidInput
from boards.identity import fingerprint
from boards.ids import check_board_id, check_event_id, check_player_id
from boards.model import Outcome, Submission
from boards.numbers import decode_json, format_value, parse_value
from boards.times import parse_time
from journal.ports import Position
from regions import problems
from regions.answering import Edge, Headers, Reply, game_of, json_reply
from regions.problems import ProblemError
from regions.tokens import Scope

_TIMES = ("achieved_at", "submitted_at")
#: The second column, a plain whole number whatever the board's `decimals`.
_SECOND = "secondary"
#: Fields of match contributions, which no board of this version takes.
_CONTRIBUTION = ("match_id", "revision", "points", "rule_version")
#: An id that is echoed from an event refused for its form is cut here.
_ECHO_CHARS = 128

_WORDS = {outcome.value: outcome.name.lower() for outcome in Outcome}
#: The service's own game: canaries of drills are on its boards, and operators send them.
OWN_GAME = "laurel"
_WRITERS: tuple[Scope, ...] = ("game-server",)
_WRITERS_OF_OURS: tuple[Scope, ...] = ("game-server", "operator")

_INVALID, _UNKNOWN, _CONFLICT = int(Outcome.INVALID), int(Outcome.UNKNOWN), int(Outcome.CONFLICT)


class Reject(msgspec.Struct, frozen=True):
    """An event that was refused here; `index` is its place in the request."""

    index: int
    event_id: str | None
    code: str
    field: str
    allowed: str


def parse_events(raw: list[Any], board: BoardInfo, now_ms: int, max_future_ms: int = 300_000) -> tuple[list[Submission], list[Reject]]:
    """Check and convert decoded events; both lists are in the order of `raw`.

    A time that was not sent is stamped with `now_ms`, and is not part of the fingerprint. Cost: about 3 µs an event.
    """
    kind, two_columns = amount_field(board), board.rules.secondary is not None
    decimals, max_age_ms = board.rules.decimals, board.rules.max_age_ms
    latest_ms = now_ms + max_future_ms
    submissions: list[Submission] = []
    rejects: list[Reject] = []
    for index, event in enumerate(raw):
        try:
            event_id, player_id = check_event_id(event["event_id"]), check_player_id(event["player_id"])
            amount = parse_value(event[kind], decimals, kind)
            fields = 3
            achieved = submitted = second = None
            if two_columns:
                fields = 4
                second = parse_value(event[_SECOND], 0, _SECOND)
            if "achieved_at" in event:
                fields += 1
                achieved = parse_time(event["achieved_at"], "achieved_at")
                if achieved > latest_ms:
                    raise _in_future("achieved_at", max_future_ms)
                if max_age_ms is not None and achieved < now_ms - max_age_ms:
                    raise InvalidInput(code="too_old", field="achieved_at", allowed=f"at most {max_age_ms} ms old")
            if "submitted_at" in event:
                fields += 1
                submitted = parse_time(event["submitted_at"], "submitted_at")
                if submitted > latest_ms:
                    raise _in_future("submitted_at", max_future_ms)
            if len(event) != fields:
                raise KeyError
            content = fingerprint(kind=kind, amount=amount, achieved_ms=achieved, submitted_ms=submitted, second=second)
        except (InvalidInput, KeyError, TypeError) as exc:
            rejects.append(_reject(index, event, kind, two_columns, exc))
        else:
            submissions.append(
                Submission(
                    event_id,
                    player_id,
                    amount,
                    now_ms if achieved is None else achieved,
                    now_ms if submitted is None else submitted,
                    content,
                    second or 0,
                )
            )
    return submissions, rejects


def amount_field(board: BoardInfo) -> str:
    """Name of the field that holds an event's amount, which is also the kind in its fingerprint."""
    return "delta" if board.rules.policy == "cumulative" else "value"


def _in_future(field: str, max_future_ms: int) -> InvalidInput:
    return InvalidInput(code="in_future", field=field, allowed=f"at most {max_future_ms // 1000} s ahead of the service's clock")


def _reject(index: int, event: Any, kind: str, two_columns: bool, exc: Exception) -> Reject:
    """Why an event was refused: its shape first, since that explains most other faults."""
    if not isinstance(event, dict):
        return Reject(index, None, "not_an_object", f"events[{index}]", "an object")
    sent = event.get("event_id")
    event_id = printable(sent)[:_ECHO_CHARS] if isinstance(sent, str) else None
    other = "value" if kind == "delta" else "delta"
    required = ("event_id", "player_id", kind, _SECOND) if two_columns else ("event_id", "player_id", kind)
    known = (*required, *_TIMES)
    for field in event:
        if field in _CONTRIBUTION:
            return Reject(index, event_id, "not_supported", field, f"{', '.join(known)}; contributions are not taken yet")
        if field == other:
            return Reject(index, event_id, "wrong_field", field, f"{kind} on this board")
        if field == _SECOND and not two_columns:
            return Reject(index, event_id, "wrong_field", field, "left out: this board has no second column")
        if field not in known:
            return Reject(index, event_id, "unknown_field", printable(field)[:_ECHO_CHARS], listed(field, known))
    for field in required:
        if field not in event:
            return Reject(index, event_id, "missing_field", field, f"{field} is required")
    if isinstance(exc, InvalidInput):
        return Reject(index, event_id, exc.code, exc.field, exc.allowed)
    raise exc


def printable(text: str) -> str:
    """The text as it can be written in UTF-8: JSON can spell lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def listed(word: str, known: Iterable[str]) -> str:
    """The known words, the nearest one first in mind."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"one of {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else "") if names else "nothing"


def read_query(request: Request, known: tuple[str, ...]) -> dict[str, str]:
    """The query parameters, each at most once and each one of `known`. Raises `ProblemError`."""
    try:
        pairs = parse_qsl(
            request.scope["query_string"].decode("ascii"), keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=50
        )
    except ValueError as exc:
        raise ProblemError("bad_parameter", "The query is not percent-encoded UTF-8 with at most 50 parameters") from exc
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise ProblemError(
                "unknown_parameter", "The query has a parameter that is not known", field=name[:128], allowed=listed(name, known)
            )
        if name in found:
            raise ProblemError("bad_parameter", f"{name} is given twice", field=name, allowed="at most once")
        found[name] = value
    return found


async def read_object(request: Request, limits_bytes: int) -> dict[str, Any]:
    """The JSON object in a request's body, of which no more than `limits_bytes` are read.

    Raises:
        ProblemError: unsupported_media_type, too_large, incomplete_body, bad_json or not_an_object.
    """
    headers = request.headers
    media, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.lower().replace(" ", "").replace('"', "")
    if media.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise ProblemError(
            "unsupported_media_type", "Send the header Content-Type: application/json", field="content-type", allowed="application/json"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ProblemError("unsupported_media_type", "Send the body uncompressed", field="content-encoding", allowed="identity")
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and (len(length) > 18 or int(length) > limits_bytes):
        raise _too_large(limits_bytes)
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limits_bytes:
                raise _too_large(limits_bytes)
            chunks.append(chunk)
    except ClientDisconnect as exc:
        raise ProblemError("incomplete_body", "The connection ended before the body did") from exc
    try:
        document = decode_json(b"".join(chunks))
    except InvalidInput as exc:
        raise ProblemError("bad_json", str(exc), allowed=exc.allowed) from exc
    if not isinstance(document, dict):
        raise ProblemError("not_an_object", "The body must be a JSON object", allowed="an object")
    return document


def _too_large(limit: int) -> ProblemError:
    return ProblemError("too_large", f"The body is larger than {limit} bytes: send fewer events in one request", allowed=f"{limit} bytes")


def check_fields(document: dict[str, Any], known: tuple[str, ...], required: tuple[str, ...] = ()) -> None:
    """Refuse unknown and missing fields of an envelope. Raises `ProblemError`."""
    for field in document:
        if field not in known:
            raise ProblemError(
                "unknown_field", "The body has a field that is not known", field=printable(field)[:128], allowed=listed(field, known)
            )
    for field in required:
        if field not in document:
            raise ProblemError("missing_field", f"{field} is required", field=field, allowed=f"the fields {', '.join(required)}")


def _events(document: dict[str, Any], max_events: int) -> list[Any]:
    """The events of an envelope, or the one event that the body is."""
    if "events" not in document and ("event_id" in document or "player_id" in document):
        return [document]
    if "events" not in document and not document:
        raise ProblemError("no_events", "The body holds no events", field="events", allowed=f"a list of 1 to {max_events} events")
    check_fields(document, ("events",), ("events",))
    events = document["events"]
    if not isinstance(events, list) or not events:
        raise ProblemError("no_events", "events must be a list of events", field="events", allowed=f"a list of 1 to {max_events} events")
    if len(events) > max_events:
        raise ProblemError(
            "too_many_events", f"The body holds {len(events)} events", field="events", allowed=f"a list of 1 to {max_events} events"
        )
    return events


async def submit(edge: Edge, request: Request, board_id: str) -> Reply:
    """`POST /v1/boards/{board}/events`. Raises for all that concerns the request as a whole; then nothing was applied."""
    check_board_id(board_id)
    game = game_of(board_id)
    claims = edge.admitted(request, _WRITERS_OF_OURS if game == OWN_GAME else _WRITERS, game)
    board = await edge.board_soon(board_id)
    include = read_query(request, ("include",)).get("include")
    if include not in (None, "rank"):
        raise ProblemError("bad_parameter", "include must be rank", field="include", allowed="rank")
    raw = _events(await read_object(request, edge.limits.max_body_bytes), edge.limits.max_events)
    submissions, rejects = parse_events(raw, board, edge.backend.now_ms(), edge.limits.max_future_ms)
    decided: list[SubmitResult] = []
    unknown: NoAuthority | None = None
    if submissions:
        try:
            decided = await edge.backend.submit(board, submissions, subject=claims.sub)
        except NoAuthority as exc:
            if exc.definite:
                raise
            unknown = exc
            decided = [SubmitResult(_UNKNOWN)] * len(submissions)
    decimals, shard, kind = board.rules.decimals, board.shard, amount_field(board)
    results = [_result(event.event_id, word, decimals, shard, kind) for event, word in zip(submissions, decided, strict=True)]
    if include == "rank":
        await _add_ranks(edge, board, submissions, decided, results)
    # Ascending by index, so each insertion finds everything before it in place.
    for reject in rejects:
        results.insert(reject.index, _invalid(reject.event_id, reject.code, reject.field, reject.allowed))
    return _reply(edge, board, results, unknown)


def _result(event_id: str, word: SubmitResult, decimals: int, shard: str, kind: str) -> dict[str, Any]:
    """What a client is told. `at_least` is how to ask for a generation that includes it, wherever the board lives by then."""
    if word.outcome == _INVALID:
        return _invalid(event_id, word.code, word.field or kind, word.allowed)
    if word.outcome == _UNKNOWN:
        return {"event_id": event_id, "outcome": "unknown", **({"code": word.code} if word.code else {})}
    at = word.shard or shard
    return {
        "event_id": event_id,
        "outcome": _WORDS[word.outcome],
        "value": format_value(word.value, decimals) if decimals else str(word.value),
        "version": word.version,
        "improved": word.improved,
        "shard": at,
        "epoch": word.epoch,
        "offset": word.offset,
        "acked": "local" if word.alone else "quorum",
        "at_least": f"{at}:{word.epoch}-{word.offset}",
        "visible_by": f"s{word.visible_by}" if word.visible_by else None,
    }


def _invalid(event_id: str | None, code: str, field: str, allowed: str) -> dict[str, Any]:
    return {"event_id": event_id, "outcome": "invalid", "code": code, "field": field, "allowed": allowed}


def _reply(edge: Edge, board: BoardInfo, results: list[dict[str, Any]], unknown: NoAuthority | None) -> Reply:
    """200; 422 or 409 for an event posted alone; 503 as soon as one outcome is unknown."""
    body: dict[str, Any] = {"board": board.board_id, "region": edge.backend.region, "results": results}
    outcomes = [result["outcome"] for result in results]
    if "unknown" in outcomes:
        found = problems.render(
            "unknown",
            unknown.detail if unknown else "Some events have no answer yet: send them again with the same ids",
            retry_after_ms=unknown.retry_after_ms if unknown else None,
            extra=body,
        )
    elif outcomes == ["invalid"]:
        alone = results[0]
        field, allowed = alone["field"], alone["allowed"]
        found = problems.render(
            alone["code"], f"{field} is not allowed as sent", field=field, allowed=allowed, fallback="invalid", extra=body
        )
    elif outcomes == ["conflict"]:
        found = problems.render("conflict", "This event id was used by this player before, with other content; nothing changed", extra=body)
    else:
        return json_reply(body, region=edge.backend.region)
    headers: Headers = [(name.encode(), value.encode()) for name, value in found.headers.items()]
    headers += [(b"content-length", b"%d" % len(found.body)), (b"x-laurel-region", edge.backend.region.encode())]
    return Reply(found.status, headers, found.body)


async def _add_ranks(
    edge: Edge, board: BoardInfo, submissions: list[Submission], decided: list[SubmitResult], results: list[dict[str, Any]]
) -> None:
    """Add the player's place in the newest generation that holds the event; null where none does within the time allowed."""
    for result in results:
        if "offset" in result:
            result["rank"] = result["position"] = result["generation"] = None
    depends: dict[str, Position] = {}
    for word in decided:
        if word.offset:
            at, place = word.shard or board.shard, Position(word.epoch, word.offset)
            depends[at] = max(place, depends.get(at, place))
    if not depends:
        return
    question = Ranks(list(dict.fromkeys(event.player_id for event in submissions)))
    try:
        if len(depends) == 1:
            answer, held = await _once_visible(edge, board, question, depends)
        else:
            first = Ranks(question.players[:1])
            waited = await asyncio.gather(*(_once_visible(edge, board, first, {at: depends[at]}) for at in depends))
            held = {at for _, shards in waited for at in shards}
            answer = await edge.backend.ask(Ask(board_id=board.board_id, question=question, wait_ms=0))
    except Unanswered:
        return
    # An event that changed nothing is held by a generation whose boundary lies before it: no new one is published for it.
    document = msgspec.json.decode(answer.body)
    places = {entry["player_id"]: entry for entry in document["entries"]}
    for event, word, result in zip(submissions, decided, results, strict=True):
        found, at = places.get(event.player_id), word.shard or board.shard
        if found is None or not word.offset:
            continue
        if at in held or Position(word.epoch, word.offset) <= _boundary(document, at):
            result["rank"], result["position"], result["generation"] = found["rank"], found["position"], document["generation"]


async def _once_visible(edge: Edge, board: BoardInfo, question: Ranks, depends: dict[str, Position]) -> tuple[Answer, set[str]]:
    """The answer of a generation that includes the position, and its shard; or the newest answer and no shard, when none came in time."""
    ((at, position),) = depends.items()  # the shard is named: the board may have moved since the position was given
    wanted = Ask(board_id=board.board_id, question=question, at_least=position, at_shard=at, wait_ms=edge.limits.wait_ms)
    try:
        return await edge.backend.ask(wanted), {at}
    except NotVisibleYet:
        # Earlier offsets of the batch (those of duplicates) may be visible all the same.
        return await edge.backend.ask(Ask(board_id=board.board_id, question=question, wait_ms=0)), set()


def _boundary(document: dict[str, Any], shard: str) -> Position:
    epoch, _, offset = str(document["boundaries"].get(shard, "0-0")).partition("-")
    return Position(int(epoch), int(offset))
