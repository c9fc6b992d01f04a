"""What a run can be told: every setting once, with its meaning, default and range."""
