"""The internet as the relay's tests want it: a name server, plain and TLS servers, in a network namespace of their own.

Runs until its standard input ends. One line of JSON on standard output says that it serves; every question, connection
and request is written to the log that is named on the command line, one JSON object a line.
"""

import json
import pathlib
import socket
import socketserver
import ssl
import struct
import sys
import threading
import time

ZONE, LOG, CERTIFICATE = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
lock = threading.Lock()
asked = {}


def write(**entry):
    with lock, pathlib.Path(LOG).open("a") as log:
        log.write(json.dumps(entry) + "\n")


def encode(name):
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"


def answer(message):
    """One reply: ZONE maps a name to addresses, to {"cname": name}, or to {"turns": [one after the other]}."""
    at, labels = 12, []
    while message[at]:
        labels.append(message[at + 1 : at + 1 + message[at]].decode())
        at += 1 + message[at]
    name, kind = ".".join(labels).lower(), struct.unpack("!H", message[at + 1 : at + 3])[0]
    write(dns=name, kind=kind)
    question = message[12 : at + 5]
    records = []

    def tell(owner):
        found = ZONE.get(owner)
        if isinstance(found, dict) and "turns" in found:
            turn = asked[owner, kind] = asked.get((owner, kind), -1) + 1
            found = found["turns"][min(turn, len(found["turns"]) - 1)]
        if isinstance(found, dict):
            target = encode(found["cname"])
            records.append(encode(owner) + struct.pack("!HHIH", 5, 1, 0, len(target)) + target)
            return tell(found["cname"])
        if found is None:
            return bool(records)
        for address in found:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            if (28 if ":" in address else 1) == kind:
                data = socket.inet_pton(family, address)
                records.append(encode(owner) + struct.pack("!HHIH", kind, 1, 0, len(data)) + data)
        return True

    code = 0 if tell(name) else 3
    head = message[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0)
    return head + question + b"".join(records)


def serve_dns(family):
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.bind(("93.184.216.53", 53))
    while True:
        message, peer = udp.recvfrom(4096)
        udp.sendto(answer(message), peer)


class Plain(socketserver.BaseRequestHandler):
    """Port 80: answers every request on the connection with the Host it read, and writes down every byte."""

    def handle(self):
        held = b""
        write(http_connection=self.request.getsockname()[0])
        while True:
            data = self.request.recv(65536)
            if not data:
                return
            write(http_bytes=data.decode("latin-1"))
            held += data
            while b"\r\n\r\n" in held:
                head, _, held = held.partition(b"\r\n\r\n")
                if b"vanish" in head:
                    return
                if b"websocket" in head and b"refuse" not in head:
                    self.request.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
                    continue
                host = next((line for line in head.split(b"\r\n") if line.lower().startswith(b"host:")), b"none")
                self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(host), host))


def tls_context(address):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    if address.endswith(".35"):
        context.set_ecdh_curve("secp384r1")  # none that a client guesses: it is asked to greet again
    return context


RESUMABLE = tls_context("")


class Tls(socketserver.BaseRequestHandler):
    """Port 443: tells the server name that it saw. Sessions of TLS 1.2 can be resumed at 93.184.216.36."""

    def handle(self):
        address = self.request.getsockname()[0]
        write(tls_connection=address)
        if address.endswith(".53"):
            return self.request.recv(65536)  # and no answer
        if address.endswith(".36"):
            return self.serve(RESUMABLE, ["resumable"])
        context, seen = tls_context(address), []
        context.sni_callback = lambda _socket, name, _context: seen.append(name)
        return self.serve(context, seen)

    def serve(self, context, seen):
        try:
            with context.wrap_socket(self.request, server_side=True) as stream:
                # Older Pythons wrap a connection that is gone already, and nobody has said anything.
                for name in seen:
                    write(sni=name)
                while data := stream.recv(65536):
                    stream.sendall(b"%s says %s" % (str(seen[0]).encode(), data))
        except OSError as error:
            write(tls_error=str(error))


class Banner(socketserver.BaseRequestHandler):
    """Port 5432: speaks first."""

    def handle(self):
        self.request.sendall(b"welcome\n")
        while data := self.request.recv(65536):
            self.request.sendall(data)
        self.request.sendall(b"bye\n")


class Bulk(socketserver.BaseRequestHandler):
    """Port 9000: the first line says how much to send; then counts what comes until the end."""

    def handle(self):
        stream = self.request.makefile("rb")
        wanted = int(stream.readline())
        block = b"x" * 262144
        started = time.monotonic()
        while wanted > 0:
            self.request.sendall(block[:wanted])
            wanted -= len(block)
        count = 0
        try:
            while data := stream.read1(262144):
                count += len(data)
        except OSError as error:
            write(bulk_error=str(error))
        write(bulk=count, seconds=time.monotonic() - started)


class Server(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 512


def main():
    for port, handler in [(80, Plain), (443, Tls), (5432, Banner), (9000, Bulk), (22, Banner), (8080, Plain)]:
        server = Server(("::", port), handler, bind_and_activate=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=serve_dns, args=(socket.AF_INET,), daemon=True).start()
    print("{}", flush=True)
    sys.stdin.read()


main()
