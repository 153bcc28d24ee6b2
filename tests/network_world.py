"""A whole internet for tests, in network and mount namespaces of its own: every address leads to the servers below.

`World` is the tests' side. It starts this file as a program, which enters new namespaces (as root, or as an ordinary
user in a user namespace that keeps the uid), makes every address local there, binds its own resolv.conf over the
host's, serves DNS, HTTP, HTTPS, a server-first protocol and plain bytes, and runs what it is told to.
"""

import contextlib
import ctypes
import http.server
import json
import os
import pathlib
import shutil
import socket
import socketserver
import ssl
import struct
import subprocess
import sys
import tempfile
import threading

NEWNS, NEWUSER, NEWNET = 0x20000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
A, CNAME, AAAA = 1, 5, 28
NAMES = ("a.test", "b.test", "xn--bcher-kva.test", "deep.sub.a.test")
# What the name server knows in most tests. a.test, b.test and evil.test live on one address.
RECORDS = {
    "a.test": {"A": ["5.5.5.5"], "AAAA": ["2600::5"]},
    "b.test": {"A": ["5.5.5.5"], "AAAA": ["2600::5"]},
    "evil.test": {"A": ["5.5.5.5"], "AAAA": ["2600::5"]},
    "c.test": {"CNAME": "a.test"},
    "deep.sub.a.test": {"A": ["5.5.5.5"]},
    "x.wild.test": {"A": ["5.5.5.6"]},
    "wild.test": {"A": ["5.5.5.6"]},
    "six.test": {"AAAA": ["2600::6"]},
    "db.test": {"A": ["5.5.5.7"]},
    "private.test": {"A": ["10.1.2.3"]},
}

# Stands before what runs in a box.
PRELUDE = """
import json, socket, ssl, time, urllib.request
def tell(value): print(json.dumps(value))
def attempt(action, *words):
    began = time.monotonic()
    try: result = action(*words)
    except OSError as error: result = f"{type(error).__name__} {error.errno}"
    return [result, time.monotonic() - began]
def get(url):
    return json.load(urllib.request.urlopen(url, timeout=10))
def connect(host, port, family=0):
    with socket.create_connection((host, port), timeout=5) as s: return "connected"
def tls(address, name, timeout=5):
    context = ssl.create_default_context()
    context.check_hostname = False
    with socket.create_connection((address, 443), timeout=timeout) as s:
        with context.wrap_socket(s, server_hostname=name) as t:
            t.sendall(f"GET / HTTP/1.1\\r\\nHost: {name}\\r\\nConnection: close\\r\\n\\r\\n".encode())
            return t.recv(1000).split(b"\\r\\n")[0].decode()
def raw(host, port, data, timeout=5):
    with socket.create_connection((host, port), timeout=timeout) as s:
        s.sendall(data)
        return s.recv(1000).decode("latin1")
"""


# --- the tests' side ------------------------------------------------------------------------------------------------


class World:
    """Runs commands where all addresses are ours, and tells what the servers have seen."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="pctx-w-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.ca = make_certificates(self.folder)
        command = [sys.executable, __file__, str(self.folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lock = threading.Lock()
        self.ask(hello=1)

    def ask(self, **request):
        with self.lock:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the world has ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def run(self, *argv, timeout=60, env=None, text=None):
        done = self.ask(run=[str(word) for word in argv], timeout=timeout, env=env or {}, input=text)
        return subprocess.CompletedProcess(argv, done["code"], done["out"], done["err"])

    def names(self, records):
        """{"a.test": {"A": ["5.5.5.5"]}}; a list of lists is answered one by one, the last one for ever."""
        self.ask(records=records)

    def seen(self):
        """{"dns": names asked for, "tcp": [port, address, first bytes], "udp": [port, address]} since the last time."""
        return self.ask(seen=1)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def make_certificates(folder):
    """A certificate authority, and one certificate for all names that are served."""
    names = ",".join(f"DNS:{name}" for name in (*NAMES, "evil.test", "*.wild.test"))
    openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*openssl, "-days", "30", "-subj", "/CN=pctx test", "-addext", f"subjectAltName={names}",
         "-keyout", str(folder / "key.pem"), "-out", str(folder / "ca.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "ca.pem").chmod(0o644)
    return folder / "ca.pem"


# --- the program: namespaces ----------------------------------------------------------------------------------------

libc = ctypes.CDLL(None, use_errno=True)


def check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def bind_over(text, target, folder):
    if not os.path.exists(target):
        return
    file = folder / ("etc-" + os.path.basename(target))
    file.write_text(text)
    check(libc.mount(os.fsencode(file), target.encode(), None, MS_BIND, None), f"mount over {target}")


def message(kind, body, *attributes):
    for number, value in attributes:
        body += struct.pack("HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
    return struct.pack("IHHII", 16 + len(body), kind, 0x405, 1, 0) + body  # REQUEST, ACK, CREATE


def enter(folder):
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(NEWNET | NEWNS | (NEWUSER if uid else 0)), "unshare")
    if uid:
        pathlib.Path("/proc/self/setgroups").write_text("deny")
        pathlib.Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        pathlib.Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    bind_over("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", "/etc/resolv.conf", folder)
    bind_over("127.0.0.1 localhost\n9.8.7.6 hosts.test\n", "/etc/hosts", folder)
    if uid:
        for file in ("/etc/subuid", "/etc/subgid"):  # one id is mapped here, and no other to be had
            bind_over("", file, folder)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.send(message(16, struct.pack("BxHiII", 0, 0, 1, 1, 1)))  # loopback up
        for family, own in ((socket.AF_INET, "77.0.0.1"), (socket.AF_INET6, "2600:77::1")):
            address = socket.inet_pton(family, own)
            body = struct.pack("BBBBI", family, len(address) * 8, 0x82, 0, 1)  # permanent, not probed for
            netlink.send(message(20, body, (1, address), (2, address)))
            # Everything is local: rtm_table 255, protocol static, scope host, type local; RTA_PREFSRC, RTA_OIF.
            body = struct.pack("BBBBBBBBI", family, 0, 0, 0, 255, 4, 254, 2, 0)
            netlink.send(message(24, body, (7, address), (4, struct.pack("I", 1))))
        for _ in range(5):
            code = struct.unpack_from("i", netlink.recv(4096), 16)[0]
            if code:
                raise OSError(-code, "netlink: " + os.strerror(-code))


# --- the program: servers -------------------------------------------------------------------------------------------

records: dict = {}
seen: dict = {"dns": [], "tcp": [], "udp": []}


def plain(address):
    return address[0].removeprefix("::ffff:")


def encode_name(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def answer_dns(query):
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("latin1"))
        at += 1 + query[at]
    kind = struct.unpack_from("!H", query, at + 1)[0]
    name = ".".join(labels).lower()
    seen["dns"].append(name)
    answers, known, owner = b"", name in records, name
    for _ in range(8):
        entry = records.get(owner, {})
        if "CNAME" not in entry:
            break
        target = encode_name(entry["CNAME"])
        answers += encode_name(owner) + struct.pack("!HHIH", CNAME, 1, 0, len(target)) + target
        owner = entry["CNAME"]
    values = entry.get({A: "A", AAAA: "AAAA"}.get(kind, "-"), [])
    if values and isinstance(values[0], list):
        values = values.pop(0) if len(values) > 1 else values[0]
    family = socket.AF_INET if kind == A else socket.AF_INET6
    for value in values:
        data = socket.inet_pton(family, value)
        answers += encode_name(owner) + struct.pack("!HHIH", kind, 1, 0, len(data)) + data
    count = sum(1 for _ in values) + (len(labels) and answers.count(struct.pack("!HHI", CNAME, 1, 0)))
    head = query[:2] + struct.pack("!HHHHH", 0x8180 if known else 0x8183, 1, count, 0, 0)
    return head + query[12 : at + 5] + answers


class Dns(socketserver.BaseRequestHandler):
    def handle(self):
        data, sock = self.request
        sock.sendto(answer_dns(data), self.client_address)


class DnsOverTcp(socketserver.StreamRequestHandler):
    def handle(self):
        while size := self.rfile.read(2):
            answer = answer_dns(self.rfile.read(struct.unpack("!H", size)[0]))
            self.wfile.write(struct.pack("!H", len(answer)) + answer)


class Web(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder = "/"

    def __init__(self, *words):
        super().__init__(*words, directory=self.folder)

    def note(self):
        port = self.request.getsockname()[1]
        seen["tcp"].append([port, plain(self.request.getsockname()), f"{self.command} {self.path}"])

    def do_GET(self):
        self.note()
        if self.path.startswith("http://"):  # as a proxy is asked, which this one is for every host
            self.path = "/" + self.path.split("/", 3)[3]
        if self.path.startswith("/files/"):
            self.path = self.path.removeprefix("/files")
            return super().do_GET()
        if self.path.startswith("/bytes/"):
            return self.reply(bytes(int(self.path.rpartition("/")[2])))
        told = {"host": self.headers.get("Host"), "at": plain(self.request.getsockname())}
        return self.reply(json.dumps(told).encode())

    def do_POST(self):
        self.note()
        left = int(self.headers["Content-Length"])
        while left > 0 and (data := self.rfile.read(min(left, 1 << 16))):
            left -= len(data)
        self.reply(b"taken")

    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *words):
        pass


class ServerFirst(socketserver.StreamRequestHandler):
    """Speaks before it is spoken to, then repeats every line."""

    def handle(self):
        seen["tcp"].append([self.request.getsockname()[1], plain(self.request.getsockname()), ""])
        self.wfile.write(b"ready\n")
        with contextlib.suppress(OSError):
            for line in self.rfile:
                self.wfile.write(line)


class Bytes(socketserver.StreamRequestHandler):
    """`send N`, `take N` or `echo`: for measuring."""

    def handle(self):
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        verb, _, number = self.rfile.readline().decode().partition(" ")
        left, block = int(number or 0), bytes(1 << 18)
        with contextlib.suppress(OSError):
            if verb == "echo\n":
                while data := self.request.recv(1 << 16):
                    self.request.sendall(data)
            while verb == "send" and left > 0:
                self.request.sendall(block[: min(left, len(block))])
                left -= len(block)
            while verb == "take" and left > 0 and (data := self.rfile.read1(1 << 18)):
                left -= len(data)
            if verb == "take":
                self.wfile.write(b"taken\n")


class Datagrams(socketserver.BaseRequestHandler):
    def handle(self):
        seen["udp"].append([self.server.server_address[1], plain(self.client_address)])


def serve(kind, port, handler, context=None):
    class Server(kind):
        address_family = socket.AF_INET6
        allow_reuse_address = daemon_threads = True
        request_queue_size = 1024

        def server_bind(self):
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

        def finish_request(self, request, client):
            if context is not None:
                request.settimeout(20)
                request = context.wrap_socket(request, server_side=True)
            super().finish_request(request, client)

        def handle_error(self, request, client):
            pass

    threading.Thread(target=Server(("::", port), handler).serve_forever, daemon=True).start()


def serve_all(folder):
    Web.folder = str(folder / "www")
    os.makedirs(Web.folder, exist_ok=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    tcp, udp = socketserver.ThreadingTCPServer, socketserver.ThreadingUDPServer
    serve(udp, 53, Dns)
    serve(tcp, 53, DnsOverTcp)
    for port in (80, 8080, 8000):
        serve(tcp, port, Web)
    for port in (443, 853, 8443):
        serve(tcp, port, Web, tls)
    for port in (5432, 22, 25):
        serve(tcp, port, ServerFirst)
    serve(tcp, 9000, Bytes)
    for port in (9999, 443, 123):
        serve(udp, port, Datagrams)


def run(request):
    env = os.environ | request["env"]
    try:
        done = subprocess.run(
            request["run"], input=request["input"], capture_output=True, text=True, errors="replace",
            timeout=request["timeout"], env=env, **({} if request["input"] else {"stdin": subprocess.DEVNULL}),
        )  # fmt: skip
        return {"code": done.returncode, "out": done.stdout, "err": done.stderr}
    except subprocess.TimeoutExpired as error:
        return {"code": -1, "out": str(error.stdout or ""), "err": f"no end within {request['timeout']} s"}


def main():
    folder = pathlib.Path(sys.argv[1])
    try:
        enter(folder)
        serve_all(folder)
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    for line in sys.stdin:
        request = json.loads(line)
        answer = {}
        if "run" in request:
            answer = run(request)
        elif "records" in request:
            records.clear()
            records.update(request["records"])
        elif "seen" in request:
            answer = {key: list(values) for key, values in seen.items()}
            for values in seen.values():
                values.clear()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
