"""Ways to a Broker that drop descriptors: they forward what is said and take away what is passed beside it.

As a program: the middle of a stream. Its standard streams are one end; the other is a socket pair of which the command
that it is given has the far half as its standard input and output.
"""

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import threading

LARGEST = 128 << 10


def command(*words):
    """The command line of the program."""
    return [sys.executable, os.path.abspath(__file__), *map(str, words)]


def main(words):
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(words, stdin=theirs, stdout=theirs)

    def forward(read, write, finish):
        while data := read():
            write(data)
        finish()

    def write_out(data):
        while data:
            data = data[os.write(1, data) :]

    inward = threading.Thread(
        target=forward,
        args=(lambda: os.read(0, 1 << 16), ours.sendall, lambda: ours.shutdown(socket.SHUT_WR)),
        daemon=True,
    )
    inward.start()
    # `recv` gives the kernel no room for descriptors: those that come are closed.
    with contextlib.suppress(OSError):
        forward(lambda: ours.recv(1 << 16), write_out, lambda: None)
    sys.exit(process.wait())


class DroppingProxy:
    """Listens at `path` and forwards packets to and from the Broker at `target`, without descriptors."""

    def __init__(self, path, target):
        self._target = str(target)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._stop, self._told = os.pipe()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        os.close(self._told)
        self._thread.join()
        os.close(self._stop)
        self._listener.close()

    def _serve(self):
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            selector.register(self._stop, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj == self._stop:
                        return
                    if key.fileobj is self._listener:
                        caller = stack.enter_context(self._listener.accept()[0])
                        broker = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                        if broker.connect_ex(self._target) != 0:
                            caller.close()
                            continue
                        selector.register(caller, selectors.EVENT_READ, broker)
                        selector.register(broker, selectors.EVENT_READ, caller)
                        continue
                    data = key.fileobj.recv(LARGEST)
                    if data:
                        with contextlib.suppress(OSError):
                            key.data.send(data)
                        continue
                    for each in (key.fileobj, key.data):
                        with contextlib.suppress(KeyError):
                            selector.unregister(each)
                        each.close()


if __name__ == "__main__":
    main(sys.argv[1:])
