"""`python -m fedwmsam` is the `fedwmsam` command."""

from fedwmsam.cli import main

main()
