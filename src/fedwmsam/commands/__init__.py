"""The commands of the command line, one file for each.

A command reads its options and prints results; the work itself is done by the packages that it
calls. These are imported when the command runs, so that `fedwmsam --help` need not import PyTorch.
"""
