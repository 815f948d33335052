"""The command `attnlimit`: while its parts are still being imported, Ctrl-C just ends it."""

import signal


def main() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from attnlimit.cli import app
    from attnlimit.cli.boundary import interrupted

    ours = before is signal.default_int_handler  # a command in the background does not hear it
    signal.signal(signal.SIGINT, interrupted if ours else before)
    app()


if __name__ == "__main__":
    main()
