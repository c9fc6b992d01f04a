"""The settings of a run: every setting once, with its meaning, default and range."""
