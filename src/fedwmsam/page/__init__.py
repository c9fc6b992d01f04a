"""The HTML page of a report: its content as plain data, one template, a script and a style sheet.

`page.py` lists the sections of the page. They hold figures from `figures.py`, `clients.py` and
`analyses.py`, tables from `tables.py`, `report/text_tables.py` and `analysis/`, and commands from
`provenance.py`. `page.html.j2` shows a section, `page.js` draws its figures.

To add

- a figure: a function that returns a `LineChart`, in the three steps that the docstring of
  `figures.py` describes, and a `Section` with that chart in `chart_sections` (or
  `analysis_sections`, if it is of an analysis) in `page.py`;
- a table: a function in `tables.py` that returns a `TextTable`, and a `Section` with it in
  `sections_of_table`; a table of `report/text_tables.py` is selected there by its kind;
- a static plot, or a statistic: see the docstring of `fedwmsam/report`.
"""
