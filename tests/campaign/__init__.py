"""Hundreds of runs that are killed, starved, damaged and disturbed: `make faults`.

And hundreds of inputs that a stranger made to do harm: `make hostile`.
docs/project/reliability.md says more.
"""
