"""A started engine: what `subprocess.Popen` would give, in two thirds of the time, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Mapping, Sequence


class Engine:
    """A process in a session of its own, with its output in pipes and `handed` as descriptors from 3 on.

    Everything else that this process has open is closed in it: Python opens nothing that others inherit.
    """

    def __init__(self, command: list[str], env: Mapping[str, str], feed: bool, handed: Sequence[int]) -> None:
        self._lock = threading.Lock()
        self.returncode: int | None = None
        self.stdin = -1
        given: list[int] = []
        try:
            if feed:
                source, self.stdin = os.pipe()
            else:
                source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            given.append(source)
            self.stdout, out = os.pipe()
            given.append(out)
            self.stderr, err = os.pipe()
            given.append(err)
            # Two steps where a number is taken: from 3 on stands what others may still need.
            last = max(*given, *handed, 2 + len(handed)) + 1
            actions: list[tuple[int, ...]] = [
                (os.POSIX_SPAWN_DUP2, fd, last + number) for number, fd in enumerate(handed)
            ]
            actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(given)]
            for number in range(len(handed)):
                actions.append((os.POSIX_SPAWN_DUP2, last + number, 3 + number))
                actions.append((os.POSIX_SPAWN_CLOSE, last + number))
            self.pid = os.posix_spawn(command[0], command, env, file_actions=actions, setsid=True)
        except BaseException:
            self.close()
            raise
        finally:
            for fd in given:
                os.close(fd)

    def kill(self) -> None:
        with self._lock:
            if self.returncode is None:
                with contextlib.suppress(ProcessLookupError):  # only where the program ignores SIGCHLD
                    os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit status, or minus the signal that ended it.

        0 where the program around us ignores SIGCHLD, or waits for every child itself: then nobody is told.
        """
        if self.returncode is None:
            try:
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)  # it keeps its number until nobody can kill it
                with self._lock:
                    if self.returncode is None:
                        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                self.returncode = 0
        return self.returncode

    def close_stdin(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def close(self) -> None:
        self.close_stdin()
        for name in ("stdout", "stderr"):
            fd = getattr(self, name, -1)
            setattr(self, name, -1)
            if fd >= 0:
                os.close(fd)
