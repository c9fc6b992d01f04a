"""The simulator: schedules, the round loop, client memory, checkpoints and the run folder."""
