"""The command `attnlimit`: while its parts are still being imported, Ctrl-C just ends it."""

import signal


def main() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from attnlimit.cli import app

    signal.signal(signal.SIGINT, before)
    app()


if __name__ == "__main__":
    main()
