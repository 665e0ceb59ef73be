"""The clocks of the actors; the pure parts get readings of them as arguments."""

import time


def monotonic_ms() -> int:
    """Milliseconds that never step back; they count while the machine sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Unix epoch milliseconds."""
    return time.time_ns() // 1_000_000
