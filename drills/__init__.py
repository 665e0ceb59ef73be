"""Rehearsals on a running cluster: plans, their runner, their reports."""
