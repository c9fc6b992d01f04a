"""The simulator: who trains when, the round loop, per-client memory, checkpoints and the run folder."""
