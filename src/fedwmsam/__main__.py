"""The entry point of `python -m fedwmsam`, which is the `fedwmsam` command."""

from fedwmsam.cli import main

main()
