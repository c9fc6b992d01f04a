"""The command line's entry point: signals are handled before anything large is imported."""

import traceback

from fedwmsam.termination import INTERRUPTED, finish, hides_interrupt, install_handlers, lifetime


def main() -> None:
    """Run the command line and exit; a mistake in the input is one sentence and exit code 2."""
    install_handlers()
    from fedwmsam.commands.app import run_app

    try:
        lifetime.can_be_interrupted = True
        code = run_app()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        if lifetime.interrupted_at is None or not is_of_interrupt(error):
            raise
        code = INTERRUPTED
    finish(code)


def is_of_interrupt(error: Exception) -> bool:
    """Return whether an error after an interrupt is its consequence, and no bug to be seen.

    A library whose import is broken off may fail with an error that does not mention it: numpy in a
    recursion. The code of a module has such a name in tracebacks.
    """
    frames = traceback.walk_tb(error.__traceback__)
    is_imported = any(frame.f_code.co_name == "<module>" for frame, _ in frames)
    return is_imported or hides_interrupt(error)
