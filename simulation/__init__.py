"""Deterministic simulation: the whole cluster in one thread, from one seed."""
