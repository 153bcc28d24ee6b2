"""A stand-in for the Broker, for tests of the client's protocol only. It isolates NOTHING: no box, no limit but time.

It speaks the Broker's side of the socket and runs guest/worker.py in plain child processes, so that the client can be
tested where no box can be made, and with a misbehaving Broker or Worker. Run it as a program: SOCKET [MODE].
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

# Workers that wait ahead of need, as the real Broker has them.
SPARES = 3
PACKAGE = Path(__file__).resolve().parent.parent.parent / "python" / "pctx_sandbox"


class Worker:
    """A child process that waits for one call."""

    def __init__(self, mode):
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                null = os.open("/dev/null", os.O_RDONLY)
                os.dup2(null, 0)
                os.dup2(out_write, 1)
                os.dup2(err_write, 2)
                keep = os.dup(theirs.fileno())
                os.dup2(keep, 3)
                os.closerange(4, 4096)
                run_worker(3, mode)
            finally:
                os._exit(70)
        theirs.close()
        os.close(out_write)
        os.close(err_write)
        self.fds = [ours.detach(), out_read, err_read]
        self.started = 0.0
        self.timeout = 0.0
        self.reason = None

    def close_fds(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []

    def kill(self, reason=None):
        self.reason = self.reason or reason
        for send in (os.killpg, os.kill):
            try:
                send(self.pid, signal.SIGKILL)
            except OSError:
                continue

    def reap(self):
        status = os.waitpid(self.pid, 0)[1]
        if self.reason:
            return {"kind": self.reason[0], "limit": self.reason[1], "exit_code": None, "signal": 9, "message": None}
        if os.WIFSIGNALED(status):
            return {
                "kind": "signaled",
                "signal": os.WTERMSIG(status),
                "exit_code": None,
                "limit": None,
                "message": None,
            }
        return {"kind": "exited", "exit_code": os.WEXITSTATUS(status), "signal": None, "limit": None, "message": None}


def run_worker(sock, mode):
    if mode.startswith("script:"):
        namespace = {"sock": socket.socket(fileno=sock)}
        exec(Path(mode.removeprefix("script:")).read_text(), namespace)
        os._exit(0)
    from guest import worker

    worker.warm()
    worker.serve(sock)


class Session:
    """One connection: at most one Worker, and what it still has to say."""

    def __init__(self, sock, broker):
        self.sock = sock
        self.broker = broker
        self.worker = None

    def handle(self, message):
        if "done" in message:
            self.end(None)
        if "lease" in message:
            self.lease(message["lease"])
        if "start" in message:
            if self.worker is None:
                self.say({"error": {"kind": "usage", "message": "there is no lease", "hint": ""}})
            else:
                self.worker.started = time.monotonic()

    def lease(self, request):
        self.broker.leases += 1
        Path(self.broker.path + ".leases").write_text(str(self.broker.leases))
        if self.broker.mode == "refuse":
            self.say({"error": {"kind": "startup", "message": "no boxes here", "hint": "test only"}})
            return
        if self.broker.mode == "queue":
            self.say({"queued": {"ahead": 3}})
            self.say({"error": {"kind": "queue", "message": "3 calls were ahead", "hint": "wait"}})
            return
        if self.broker.mode == "die-at-lease" and self.broker.leases == 1:
            os._exit(1)
        self.worker = self.broker.spares.pop(0) if self.broker.spares else Worker(self.broker.mode)
        self.worker.timeout = request["policy"]["limits"]["timeout"]
        message = json.dumps({"leased": {"id": str(self.worker.pid)}}).encode()
        with contextlib.suppress(OSError):  # the client may be gone; the next read says so
            socket.send_fds(self.sock, [message], self.worker.fds)
        self.worker.close_fds()

    def end(self, reason):
        if self.worker is None:
            return
        worker, self.worker = self.worker, None
        worker.kill(reason)
        outcome = worker.reap()
        if worker.started:
            usage = {"wall_ms": (time.monotonic() - worker.started) * 1000}
            self.say({"ended": {"outcome": outcome, "receipt": {"loopback": True, "usage": usage}}})

    def say(self, message):
        with contextlib.suppress(OSError):
            self.sock.send(json.dumps(message).encode())

    def tick(self):
        worker = self.worker
        if worker is None:
            return
        if worker.started and time.monotonic() - worker.started > worker.timeout:
            self.end(("timed_out", "timeout"))
            return
        if os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) and worker.started:
            self.end(None)


class Broker:
    def __init__(self, path, mode):
        self.path = path
        self.mode = mode
        self.leases = 0
        self.spares = []
        self.sessions = {}
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(128)
        self.poll = select.poll()
        self.poll.register(self.listener, select.POLLIN)

    def serve(self):
        # It leaves with the tests, unless a test plays `serve` and means it to stay.
        while os.getppid() != 1 or "LOOPBACK_STAYS" in os.environ:
            for fd, _ in self.poll.poll(20):
                if fd == self.listener.fileno():
                    self.accept()
                else:
                    self.hear(self.sessions[fd])
            for session in list(self.sessions.values()):
                session.tick()
            while len(self.spares) < SPARES:
                self.spares.append(Worker(self.mode))

    def accept(self):
        sock = self.listener.accept()[0]
        self.sessions[sock.fileno()] = Session(sock, self)
        self.poll.register(sock, select.POLLIN)

    def hear(self, session):
        try:
            packet = session.sock.recv(1 << 17)
        except OSError:
            packet = b""
        if packet:
            session.handle(json.loads(packet))
            return
        self.poll.unregister(session.sock)
        del self.sessions[session.sock.fileno()]
        session.end(None)
        session.sock.close()


def main():
    path = sys.argv[1]
    mode = sys.argv[2] if len(sys.argv) > 2 else ""
    # Only the guest's part and cloudpickle, as in a box; the package itself stays out of reach.
    import cloudpickle

    lent = tempfile.mkdtemp(prefix="lent-")
    os.symlink(PACKAGE / "guest", os.path.join(lent, "guest"))
    os.symlink(os.path.dirname(cloudpickle.__file__), os.path.join(lent, "cloudpickle"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "cloudpickle"]:
        del sys.modules[name]
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [lent] + [entry for entry in sys.path if entry not in ("", here, str(PACKAGE.parent))]
    if not mode.startswith("script:"):
        import cloudpickle
        from guest import worker  # noqa: F401  # once, as a Zygote does
    try:
        Broker(path, mode).serve()
    finally:
        shutil.rmtree(lent)


if __name__ == "__main__":
    main()
