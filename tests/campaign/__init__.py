"""Runs that are killed, starved, damaged and disturbed, hundreds of times: `make faults` (docs/reliability.md)."""
