"""The command `attnlimit`: while its parts are still being imported, Ctrl-C just ends it."""

import os
import signal
import sys

NARROWEST = 20
"""Letters on a line."""


def main() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; a file that is written would take its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    try:
        os.getcwd()
    except OSError:  # libraries that are imported abort without it
        sys.stderr.write("error: The folder that you are in is gone: go to another one with cd.\n")
        sys.exit(2)
    if os.environ.get("COLUMNS", "").isdigit() and int(os.environ["COLUMNS"]) < NARROWEST:
        del os.environ["COLUMNS"]  # not known: nothing would be shown
    os.environ["MPLBACKEND"] = "agg"  # no window is shown; a notebook's may not be installed here
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from attnlimit.cli import app
    from attnlimit.cli.boundary import interrupted

    ours = before is signal.default_int_handler  # a command in the background does not hear it
    signal.signal(signal.SIGINT, interrupted if ours else before)
    for name in ("SIGTERM", "SIGHUP"):  # there is no SIGHUP on Windows, and nohup's stays ignored
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, interrupted)
    app()


if __name__ == "__main__":
    main()
