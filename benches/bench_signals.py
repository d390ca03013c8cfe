"""Ends a bench's children with it, softly: what mounts and serves takes its things away only if it is asked to end.

`subprocess.run` kills its child outright when a signal's handler raises, and `Popen` leaves it behind.
"""
import os
import pathlib
import signal
import sys
import time

WAIT_S = 60


def children():
    """The processes that this one has started and that still run."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except (OSError, IndexError):
            continue
        if int(parent) == os.getpid() and state not in "ZX":
            found.append(int(entry.name))
    return found


def has_heard(child, number):
    """The terminal sends Ctrl-C to its whole foreground group, and a second signal often means more than the first."""
    try:
        return number == signal.SIGINT and sys.stdin.isatty() and os.getpgid(child) == os.getpgrp()
    except (OSError, ValueError):
        return False


def end(number, _frame):
    for child in children():
        if not has_heard(child, number):
            try:
                os.kill(child, signal.SIGTERM)
            except ProcessLookupError:
                pass
    deadline = time.monotonic() + WAIT_S
    while children() and time.monotonic() < deadline:
        time.sleep(0.1)
    sys.exit(128 + number)


def end_children_on_signals():
    """For SIGINT and SIGTERM; the exit code is 128 and the signal's number, as in a shell."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
