"""Runs cases and prints one line for each: `ok CLIENT: CASE` or `FAIL CLIENT: CASE: why`."""

import os.path
import sys
import threading
import time
import traceback


class Cases:
    def __init__(self, client):
        self.client = client
        self.failed = 0

    def run(self, name, case, *arguments):
        begin = time.monotonic()
        try:
            case(*arguments)
            print(f"ok   {self.client}: {name} ({time.monotonic() - begin:.2f} s)", flush=True)
        except Exception as error:  # a case may fail in any way its client library likes
            self.failed += 1
            where = traceback.extract_tb(error.__traceback__)
            line = next((frame.lineno for frame in reversed(where) if os.path.basename(frame.filename) == os.path.basename(sys.argv[0])), 0)
            print(f"FAIL {self.client}: {name}: {type(error).__name__}: {error} (line {line})", flush=True)

    def finish(self):
        sys.stdout.flush()
        # Threads of a client that a failed case has left behind must not keep the process.
        threading._shutdown = lambda: None
        sys.exit(1 if self.failed else 0)


def check(found, expected, what=""):
    if found != expected:
        text = repr(found)
        raise AssertionError(f"{what or 'found'} {text[:200]}, expected {repr(expected)[:200]}")
