"""The commands of the command line, one file for each: what it takes, says and shows. What it does lives elsewhere.

They import what they need when they run, so that `fedwmsam --help` does not wait for PyTorch.
"""
