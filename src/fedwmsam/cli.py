"""The command line's entry point: signals are handled before anything large is imported."""

from fedwmsam.termination import INTERRUPTED, finish, install_handlers, lifetime


def main() -> None:
    """Run the command line and exit; a mistake in the input is one sentence and exit code 2."""
    install_handlers()
    from fedwmsam.commands.app import run_app

    try:
        lifetime.can_be_interrupted = True
        code = run_app()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:
        # A library that is interrupted while it is imported may fail with an error of its own.
        if lifetime.interrupted_at is None:
            raise
        code = INTERRUPTED
    finish(code)
