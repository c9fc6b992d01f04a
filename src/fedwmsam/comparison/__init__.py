"""Comparisons: many runs that differ in method, options or seed, carried out side by side."""
