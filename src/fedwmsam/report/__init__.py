"""What people see of runs: tables, a live display, later plots and a page."""
