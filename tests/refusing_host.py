"""A host that refuses user namespaces to everybody but Podman, as distributions do that let programs have them by name.

What runs under `refused` has a filter that answers as such a kernel does. Podman has a right of its own there: its
stand-in on the PATH hands streams, words and environment to `Outside`, which runs the real one without the filter.
Everything else is as it is: no part of ours is replaced.
Other filters here refuse less: a host name, a kind of namespace that a box can be without.
"""

import contextlib
import ctypes
import errno
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

CLONE_NEWUSER = 0x10000000
# By machine: AUDIT_ARCH, clone, unshare, sethostname. clone3 is 435 everywhere.
MACHINES = {"x86_64": (0xC000003E, 56, 272, 170), "aarch64": (0xC00000B7, 220, 97, 161)}
CLONE3 = 435
NO_HOST_NAME = "--no-host-name"
STAND_IN = """#!/usr/bin/python3 -I
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect({path!r})
    words = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(sock, [len(words).to_bytes(4, "little")], [0, 1, 2])
    sock.sendall(words)
    answer = sock.recv(4)
sys.exit(int.from_bytes(answer, "little") if len(answer) == 4 else 125)
"""


def _filter():
    audit, clone, unshare, _ = MACHINES[os.uname().machine]
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    refuse, allow, unknown = 0x50000 | errno.EPERM, 0x7FFF0000, 0x50000 | errno.ENOSYS
    program = [
        (load, 0, 0, 4),
        (equal, 0, 7, audit),
        (load, 0, 0, 0),
        (equal, 6, 0, CLONE3),
        (equal, 1, 0, clone),
        (equal, 0, 3, unshare),
        (load, 0, 0, 16),
        (any_bit, 0, 1, CLONE_NEWUSER),
        (answer, 0, 0, refuse),
        (answer, 0, 0, allow),
        (answer, 0, 0, unknown),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in program), len(program)


def _no_host_name():
    audit, _, _, name = MACHINES[os.uname().machine]
    load, equal, answer = 0x20, 0x15, 0x06
    program = [
        (load, 0, 0, 4),
        (equal, 0, 3, audit),
        (load, 0, 0, 0),
        (equal, 0, 1, name),
        (answer, 0, 0, 0x50000 | errno.EPERM),
        (answer, 0, 0, 0x7FFF0000),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in program), len(program)


def install(program):
    """From here on, for this process and all that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    lines, count = program
    buffer = ctypes.create_string_buffer(lines, len(lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", count, ctypes.addressof(buffer)), 16)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the filter is refused")


def refused(*command):
    """The command, on such a host."""
    return [sys.executable, str(Path(__file__).resolve()), *map(str, command)]


def without_host_name(*command):
    """The command, under a filter as Podman's default one: it lets a uts namespace be made, and refuses it a name."""
    return refused(NO_HOST_NAME, *command)


class Outside:
    """Podman for those who are under the filter."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self._podman = shutil.which("podman")
        path = str(self.folder / "podman.sock")
        self.folder.joinpath("bin").mkdir()
        program = self.folder / "bin/podman"
        program.write_text(STAND_IN.format(path=path))
        program.chmod(0o755)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen(64)
        self.commands = []
        threading.Thread(target=self._serve, daemon=True).start()

    def environment(self):
        return os.environ | {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def close(self):
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self):
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection):
        with connection:
            head, fds, _, _ = socket.recv_fds(connection, 4, 3)
            size, text = int.from_bytes(head, "little"), b""
            while len(text) < size:
                text += connection.recv(size - len(text))
            words, env, cwd = json.loads(text)
            self.commands.append(words)
            streams = dict(zip(("stdin", "stdout", "stderr"), fds, strict=True))
            process = subprocess.Popen([self._podman, *words], env=env, cwd=cwd, start_new_session=True, **streams)
            for fd in fds:
                os.close(fd)

            def end_with_the_caller():
                if not connection.recv(1):
                    process.kill()

            threading.Thread(target=end_with_the_caller, daemon=True).start()
            status = process.wait()
            with contextlib.suppress(OSError):
                connection.sendall((status if status >= 0 else 128 - status).to_bytes(4, "little"))
                connection.shutdown(socket.SHUT_RDWR)


def without_namespaces(kind, *command):
    """The command, where no namespace of a kind (`uts`, `cgroup`) can be made: a user namespace bounds them."""
    switch = f'echo 0 > /proc/sys/user/max_{kind}_namespaces && exec "$@"'
    return ["unshare", "-U", "-r", "sh", "-c", switch, "sh", *map(str, command)]


if __name__ == "__main__":
    install(_no_host_name() if sys.argv[1] == NO_HOST_NAME else _filter())
    command = sys.argv[2:] if sys.argv[1] == NO_HOST_NAME else sys.argv[1:]
    os.execvp(command[0], command)
