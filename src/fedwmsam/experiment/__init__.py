"""Experiments: from settings to a run and its result.

`api.py` holds `fit`, `experiment.py` the runs of the command line, `assembly.py` what both share.
`result.py` is what a run returns, `evaluation.py` accuracy by class and by client, `verify.py` the
replay of reference vectors.
"""
