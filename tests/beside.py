"""How tests/run.py runs parts beside each other: their turns, and their output in one piece each."""

import concurrent.futures
import contextlib
import contextvars
import tempfile
import threading

# Where a part writes while others run beside it; None: to our own standard output.
output: contextvars.ContextVar = contextvars.ContextVar("output", default=None)
# What gives a part the machine for itself; None: it has that already.
_quiet: contextvars.ContextVar = contextvars.ContextVar("quiet", default=None)


class Places:
    """For some parts at a time, taken in order. A part that needs the machine for itself gives its place away and waits
    until every other part is over, or waits for the same; then they take turns."""

    def __init__(self, parts, at_once):
        self._changed = threading.Condition()
        self._waiting, self._running, self._at_once = list(range(parts)), set(), at_once
        self._taken = False

    def take(self, number):
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[0] == number and len(self._running) < self._at_once)
            self._running.add(self._waiting.pop(0))
            self._changed.notify_all()

    def give_away(self, number):
        with self._changed:
            self._running.discard(number)
            self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self, number):
        self.give_away(number)
        with self._changed:
            self._changed.wait_for(lambda: not (self._waiting or self._running or self._taken))
            self._taken = True
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._changed.notify_all()


def alone():
    """A block that runs when nothing runs beside it."""
    quiet = _quiet.get()
    return contextlib.nullcontext() if quiet is None else quiet()


def run(works, at_once):
    """What the functions return, each with what it printed and as soon as it is over; they start in this order."""
    places = Places(len(works), at_once)

    def one(number, work):
        places.take(number)
        try:
            with tempfile.TemporaryFile("w+", errors="replace") as printed:
                output.set(printed)
                _quiet.set(lambda: places.alone(number))
                result = work()
                printed.seek(0)
                return result, printed.read()
        finally:
            places.give_away(number)

    with concurrent.futures.ThreadPoolExecutor(len(works)) as threads:
        jobs = [threads.submit(contextvars.Context().run, one, *each) for each in enumerate(works)]
        for job in concurrent.futures.as_completed(jobs):
            yield job.result()
