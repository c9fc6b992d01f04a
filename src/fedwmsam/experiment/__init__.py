"""From settings to a run and its outcome: `fit`, what the command line runs, results, verification."""
