"""The one exception for mistakes a person can correct."""


class InputError(ValueError):
    """Bad input from a person: one sentence naming the value, what was expected and what to do.

    The command line prints it without a traceback and exits with code 2.
    """
