"""What makes two events with the same identity the same event.

The identity is (board, player, event id); this is about the content. It is fingerprinted after parsing, so
key order, white space and the spelling of a number make no difference, and it covers only what the client
sent: a time that a gateway stamped would differ between two deliveries of one event.
"""

from hashlib import blake2b

FINGERPRINT_BYTES = 16


def fingerprint(*, kind: str, amount: int, achieved_ms: int | None, submitted_ms: int | None, second: int | None = None) -> bytes:
    """16 bytes that are equal exactly when the content is.

    `kind` says what `amount` means (`value`, `delta`); None stands for a time that the client did not send.
    These bytes are written to journals: the encoding may never change, only be joined by other kinds. The
    parts after the kind hold no `|`, and `second` (of boards with a second column) is a part more, so no two contents share an encoding.
    """
    content = f"{kind}|{amount}|{achieved_ms}|{submitted_ms}" + ("" if second is None else f"|{second}")
    return blake2b(content.encode(), digest_size=FINGERPRINT_BYTES).digest()
