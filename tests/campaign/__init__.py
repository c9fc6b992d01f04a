"""Hundreds of runs that are killed, starved, damaged and disturbed: `make faults`.

docs/reliability.md says more.
"""
