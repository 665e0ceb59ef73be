"""What a mutant is: the product with one rule broken."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Words = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rule` says in words what is broken; `changes` are (function, words and what they become...), `switch` one of `Switches`.

    Where `invariant` is given, only its violations count: what must be caught is what this rule is for.
    """

    rule: str
    changes: tuple[tuple[Callable[..., Any], Words], ...] = ()
    switch: str = ""
    invariant: str = ""
