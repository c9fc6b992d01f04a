"""Results of runs for people: tables, static plots, and the displays of the terminal.

The way from run folders to output: `runs.py` reads the folders, `summary.py` computes rows, tables
and paired differences, `text_tables.py` turns these into tables of text and writes Markdown and
CSV, `pivot.py` makes tables of methods by settings, `latex.py` writes LaTeX for papers, `series.py`
and `plots.py` draw. `terminal.py` has the live displays and prints the tables, `partition_plot.py`
shows partitions. The HTML page is in `fedwmsam/page`.

To add

- a statistic of runs or of paired differences: see the docstring of `summary.py`;
- a table: a function that returns a `TextTable`, called in `make_text_tables` (`text_tables.py`);
- a static plot: a name, a height and a drawing function, yielded by `table_plots` (`plots.py`);
- a figure or a table on the page: see the docstring of `fedwmsam/page`.
"""
