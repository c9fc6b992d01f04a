"""Measurements during a run: alignment of perturbations, client drift, echo of updates."""
