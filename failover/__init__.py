"""The protocol core, pure: `step(state, event) -> actions`. No I/O, no clock, no randomness."""
