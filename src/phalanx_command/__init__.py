"""Starts the ``phalanx`` command. It is apart from the package ``phalanx``, whose import takes most of a second."""

import signal


def main() -> None:
    """Run the command. While it imports, and when it has ended, Ctrl-C ends the process without a traceback."""
    _at_interrupt(signal.SIG_DFL)
    from phalanx.cli import main as run  # noqa: PLC0415 - that is the import

    _at_interrupt(signal.default_int_handler)  # so that commands can clean up
    try:
        run()
    finally:
        _at_interrupt(signal.SIG_DFL)


def _at_interrupt(action: "signal._HANDLER") -> None:
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as in a script's background jobs
        signal.signal(signal.SIGINT, action)
