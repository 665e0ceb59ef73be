"""Chaos on real processes: a seeded nemesis under client load, its history, and what must hold of it."""
