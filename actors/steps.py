"""Pure work that takes long, in steps: whoever runs them decides when others get a turn, and in which thread heavy work is done."""

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")

#: Work that touches one rank index alone and is to be done, in whatever thread, before the steps that yielded it go on.
Work = Callable[[], object]
#: Yields work, or None where others may have a turn. Nothing but these steps may change meanwhile what they change.
Steps = Generator[Work | None, None, T]


def at_once(steps: Steps[T]) -> T:
    """Do all of it here and now."""
    while True:
        try:
            work = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if work is not None:
            work()
