"""A real terminal with a program of ours on it."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

# Generous: only a program that does not do what it should is waited for that long.
PATIENCE = 120


class Terminal:
    """A real terminal with a run on it, and the termios state before."""

    def __init__(self, command, rows=33, columns=99):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            command, stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True
        )

    def read_until(self, word):
        """What was shown until the word appeared, the program ended, or PATIENCE was over."""
        shown, until = b"", time.monotonic() + PATIENCE
        while word not in shown and time.monotonic() < until:
            if not select.select([self.master], [], [], 0.2)[0]:
                if self.process.poll() is not None:
                    break
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            shown += data
        return shown

    def restored(self):
        """Whether the terminal becomes what it was before, within PATIENCE."""
        until = time.monotonic() + PATIENCE
        while termios.tcgetattr(self.slave) != self.before:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def resize(self, rows, columns):
        """As a terminal's window does it: the size, then the signal to whoever is in its foreground."""
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        os.kill(self.process.pid, signal.SIGWINCH)

    def finish(self):
        status = self.process.wait(PATIENCE)
        os.set_blocking(self.master, False)
        shown = b""
        with contextlib.suppress(OSError):
            while data := os.read(self.master, 65536):
                shown += data
        return status, shown

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)
