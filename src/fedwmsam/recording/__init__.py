"""What can be measured of a run while it goes on: alignment of perturbations, client drift, echo of updates."""
