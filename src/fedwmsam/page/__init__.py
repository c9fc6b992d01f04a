"""The HTML page of a report: what is on it as plain data, one template that shows it, and its script and style."""
