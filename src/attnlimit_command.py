"""The command `attnlimit`: while its parts are still being imported, Ctrl-C just ends it."""

import os
import signal
import sys


def main() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed; a file that is written would take its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    try:
        os.getcwd()
    except OSError:  # libraries that are imported abort without it
        sys.stderr.write("error: The folder that you are in is gone: go to another one with cd.\n")
        sys.exit(2)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from attnlimit.cli import app
    from attnlimit.cli.boundary import interrupted

    ours = before is signal.default_int_handler  # a command in the background does not hear it
    signal.signal(signal.SIGINT, interrupted if ours else before)
    app()


if __name__ == "__main__":
    main()
