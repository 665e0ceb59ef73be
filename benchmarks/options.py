"""How long and how hard a benchmark runs."""

import sys
from dataclasses import dataclass

#: Short trials that look for the knee.
TRIAL_S = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of one call. `clients` are client processes, spread evenly over the regions."""

    seconds: float = 6.0
    clients: int = 3
    repeat: int = 1
    quick: bool = False
    quiet: bool = False

    @property
    def trial_s(self) -> float:
        """Measured seconds of a trial on the ladder."""
        return min(TRIAL_S, self.seconds)

    def say(self, text: str) -> None:
        """Progress, to the error channel: the output holds figures alone."""
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)
