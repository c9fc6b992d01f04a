"""The paper's tables and figures as experiments to run again, beside the numbers that it prints."""
