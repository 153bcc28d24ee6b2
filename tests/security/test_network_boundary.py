"""Only what is named gets out. Every claim has its control: the same attempt succeeds outside, or for the named host.

Everything runs in an internet of the tests' own (network_world), in which every address answers: whatever leaves a box
would arrive somewhere and be seen.
"""

import json
import sys

import network_world
import pytest

REFUSED = "ConnectionRefusedError 111"
RESET = "ConnectionResetError 104"


def refused_entries(report):
    return [each for each in report["network"]["connections"] if not each["allowed"]]


# --- other names on the same address --------------------------------------------------------------------------------


def test_another_name_on_the_same_address_is_cut_by_its_sni(world, networked):
    code = 'tell([attempt(tls, "a.test", name)[0] for name in ("a.test", "A.TEST", "evil.test", None)])'
    report = networked(code, "allow:a.test")
    assert report["value"][:2] == ["HTTP/1.1 200 OK", "HTTP/1.1 200 OK"]
    assert all("Error" in each for each in report["value"][2:]), report["value"]
    assert len(refused_entries(report)) >= 2 and all(each["reason"] for each in refused_entries(report))
    assert len(world.seen()["tcp"]) == 2, "the server has seen nothing of the other name"
    assert networked('tell(tls("evil.test", "evil.test"))', "allow:evil.test")["value"] == "HTTP/1.1 200 OK"


REQUEST = "GET /{} HTTP/1.1\\r\\nHost: {}\\r\\n\\r\\n"


def test_another_name_on_the_same_address_is_cut_by_its_host(world, networked):
    def ask(host):
        return f'raw("a.test", 80, b"{REQUEST.format("x", host)}")'

    code = f"""
both = b"{REQUEST.format("1", "a.test")}" + b"{REQUEST.format("2", "evil.test")}"
def pipelined():
    with socket.create_connection(("a.test", 80), timeout=5) as s:
        s.sendall(both)
        got = b""
        while part := s.recv(1000): got += part
        return got.decode()
tell([{ask("a.test")}, attempt(lambda: {ask("evil.test")})[0], attempt(pipelined)[0]])
"""
    report = networked(code, "allow:a.test")
    assert report["value"][0].startswith("HTTP/1.1 200")
    assert not report["value"][1].startswith("HTTP"), report["value"]
    paths = [entry[2] for entry in world.seen()["tcp"]]
    assert "GET /2" not in paths and paths.count("GET /x") == 1, paths
    assert refused_entries(report) or any(each["reason"] for each in report["network"]["connections"])


# --- other ports, other addresses, other protocols ------------------------------------------------------------------


def test_other_ports_of_a_named_host_are_refused_at_once(world, networked):
    code = 'tell([attempt(connect, "a.test", port) for port in (22, 25, 8080, 8443, 5432, 9000, 1)])'
    report = networked(code, "allow:a.test")
    assert all(result == REFUSED and seconds < 5 for result, seconds in report["value"]), report["value"]
    assert world.seen()["tcp"] == []
    assert len(refused_entries(report)) >= 7, "each attempt stands in the receipt"
    assert networked('tell(connect("a.test", 8080))', "allow:a.test:8080")["value"] == "connected"


def test_a_port_that_another_entry_opened_stays_closed_for_this_one(world, networked):
    code = 'tell([raw("db.test", 5432, b"")[:5], attempt(raw, "a.test", 5432, b"x")[0]])'
    report = networked(code, "allow:a.test,db.test:5432")
    assert (report["value"][0] == "ready" and "Error" in report["value"][1]) or report["value"][1] == ""
    assert [5432, "5.5.5.5", ""] not in world.seen()["tcp"]


ADDRESSES = ["5.5.5.5", "2600::5", "1.1.1.1", "10.1.2.3", "192.168.1.1", "169.254.169.254", "100.64.0.1", "fd00::1"]


def test_direct_addresses_are_refused_at_once_and_written_down(world, networked):
    for address in ADDRESSES:
        url = f"http://[{address}]/" if ":" in address else f"http://{address}/"
        assert world.run("curl", "-s", "-m", "5", url).returncode == 0, "outside it answers"
    world.seen()
    code = f"tell([attempt(raw, a, port, b'GET') for a in {ADDRESSES} for port in (80, 443, 9000)])"
    report = networked(code, "allow:a.test")
    # Over IPv6, on a port that the list names, the relay itself says so: a reset instead of a refusal.
    assert all(result in (REFUSED, RESET) and seconds < 5 for result, seconds in report["value"]), report["value"]
    assert world.seen()["tcp"] == []
    written = {(each["address"], each["port"]) for each in refused_entries(report)}
    assert written >= {(address, port) for address in ADDRESSES for port in (80, 443, 9000)}


WITHOUT_PACKETS = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
# socket(AF_PACKET, ...) is EPERM from here on, as where a container's own filter refuses it.
code = [(0x20, 0, 0, 0), (0x15, 0, 3, number), (0x20, 0, 0, 16), (0x15, 0, 1, 17)]
code += [(6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("HBBI", *each) for each in code)
buffer = ctypes.create_string_buffer(program)
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_where_nobody_may_watch_attempts_fail_all_the_same(world, networked, sandbox_bin):
    code = """
tell([get("http://a.test/")["host"], *[attempt(raw, a, 80, b"x") for a in ("5.5.5.5", "2600::5", "10.1.2.3")]])
"""
    box = [sandbox_bin, "run", "-q", "--json", "--network", "allow:a.test", "--", "python3", "-c"]
    done = world.run(sys.executable, "-c", WITHOUT_PACKETS, *box, network_world.PRELUDE + code)
    report = json.loads(done.stdout)
    host, *attempts = json.loads(report["stdout"])
    assert host == "a.test" and report["receipt"]["network"]["attempts_recorded"] is False
    assert all(result in ("OSError 101", RESET) and seconds < 5 for result, seconds in attempts), attempts


def test_udp_reaches_nobody(world, networked):
    send = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('5.5.5.5', 9999))"
    world.run(sys.executable, "-c", send)
    assert world.seen()["udp"], "outside it arrives"
    code = """
def shout(host, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(5)
    s.connect((host, port))
    s.send(b"x")
    return s.recv(10).decode()
own = socket.gethostbyname("a.test")
tell([attempt(shout, host, port) for host in ("5.5.5.5", own, "8.8.8.8") for port in (9999, 443, 123)])
"""
    report = networked(code, "allow:a.test")
    assert all(result == REFUSED and seconds < 5 for result, seconds in report["value"]), report["value"]
    assert world.seen()["udp"] == []
    assert any(each["transport"] == "udp" for each in refused_entries(report))


def test_no_socket_but_tcp_udp_and_unix_can_be_made(networked):
    code = """
def made(*words):
    socket.socket(*words).close()
    return "made"
tell([attempt(made, *words)[0] for words in (
    (2, 1), (10, 1), (2, 2), (10, 2), (1, 1),
    (2, 3, 1), (2, 3, 255), (10, 3, 58), (17, 3, 768), (17, 2, 768), (16, 3, 0), (40, 1, 0), (2, 1, 132), (2, 2, 1))])
"""
    value = networked(code, "allow:a.test")["value"]
    assert value[:5] == ["made"] * 5
    assert all("Error" in each for each in value[5:]), value


# --- names ----------------------------------------------------------------------------------------------------------


def test_nothing_of_a_name_that_is_not_allowed_reaches_a_resolver(world, networked):
    code = """
import struct
def ask(name, kind=1, tcp=False, server="198.18.0.1"):
    packed = b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\\0"
    query = struct.pack("!HHHHHH", 7, 0x100, 1, 0, 0, 0) + packed + struct.pack("!HH", kind, 1)
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
    s.settimeout(3)
    s.connect((server, 53))
    s.send((struct.pack("!H", len(query)) if tcp else b"") + query)
    answer = s.recv(600)[2 if tcp else 0:]
    return answer[3] & 15
names = ["secret-0.evil.test", "secret-1.a.test", "a.test.evil.test", "evil.test"]
tell([[attempt(ask, n, k, t)[0] for n in names for k in (1, 28, 16, 5, 255) for t in (False, True)],
      attempt(ask, "a.test", 16)[0], ask("a.test"), attempt(ask, "a.test", 1, False, "8.8.8.8")[0]])
"""
    report = networked(code, "allow:a.test")
    refused, text, known, elsewhere = report["value"]
    assert set(refused) == {3}, refused
    assert (text, known) == (0, 0)
    assert elsewhere == REFUSED, "another name server is an address like any other"
    assert set(world.seen()["dns"]) == {"a.test"}
    assert {each["name"] for each in refused_entries(report)} >= {"secret-0.evil.test", "secret-1.a.test"}


def test_other_ways_to_resolve_are_closed(world, networked):
    world.names(network_world.RECORDS | {"dns.google": {"A": ["8.8.8.8"]}})
    code = """
tell([attempt(connect, "8.8.8.8", 443)[0], attempt(connect, "8.8.8.8", 853)[0], attempt(connect, "8.8.8.8", 53)[0],
      attempt(socket.gethostbyname, "dns.google")[0]])
"""
    assert networked(code, "allow:a.test")["value"] == [REFUSED] * 3 + ["gaierror -2"]


CLOSED = {
    "loopback": {"A": ["127.0.0.1"]},
    "loopback, another": {"A": ["127.8.8.8"]},
    "loopback over IPv6": {"AAAA": ["::1"]},
    "unspecified": {"A": ["0.0.0.0"]},
    "link-local": {"A": ["169.254.1.1"]},
    "metadata": {"A": ["169.254.169.254"]},
    "metadata over IPv6": {"AAAA": ["fd00:ec2::254"]},
    "private": {"A": ["192.168.7.7"]},
    "private, a large range": {"A": ["10.1.2.3"]},
    "carrier-grade": {"A": ["100.64.0.1"]},
    "unique local": {"AAAA": ["fd12::1"]},
    "link-local over IPv6": {"AAAA": ["fe80::1"]},
    "multicast": {"A": ["224.0.0.1"]},
    "IPv4 in IPv6": {"AAAA": ["::ffff:127.0.0.1"]},
    "private IPv4 in IPv6": {"AAAA": ["::ffff:10.1.2.3"]},
    "translated": {"AAAA": ["64:ff9b::7f00:1"]},
    "6to4": {"AAAA": ["2002:7f00:1::1"]},
    "this host": {"A": ["77.0.0.1"]},
    "behind an alias": {"CNAME": "inner.test"},
}


@pytest.mark.parametrize("kind", CLOSED)
def test_a_name_that_leads_inside_is_refused(world, networked, kind):
    world.names({"moved.test": CLOSED[kind], "inner.test": {"A": ["127.0.0.1"]}, "open.test": {"A": ["5.5.5.5"]}})
    code = """
def fetch(name):
    with socket.create_connection((name, 8080), timeout=5) as s:
        s.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        return s.recv(20).decode()
tell([attempt(fetch, "moved.test"), attempt(fetch, "open.test")[0]])
"""
    (result, seconds), control = networked(code, "allow:moved.test:8080,open.test:8080")["value"]
    assert not result.startswith("HTTP") and seconds < 5
    assert control.startswith("HTTP/1.1 200")
    assert [entry for entry in world.seen()["tcp"] if entry[1] != "5.5.5.5"] == []


@pytest.mark.parametrize("once", [False, True], ids=["asked each time", "asked once"])
def test_a_name_that_changes_its_mind_is_checked_on_every_connection(world, networked, once):
    world.names({"turn.test": {"A": [["5.5.5.5"], ["5.5.5.5"], ["127.0.0.1"]], "AAAA": []}})
    code = f"""
place = (socket.gethostbyname("turn.test") if {once} else "turn.test", 8080)
def fetch():
    with socket.create_connection(place, timeout=5) as s:
        s.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        return s.recv(20).decode()
results = []
for _ in range(60):
    results.append(attempt(fetch)[0])
    if not results[-1].startswith("HTTP"): break
    time.sleep(0.5)
tell(results)
"""
    report = networked(code, "allow:turn.test:8080")
    assert report["value"][0].startswith("HTTP/1.1 200"), "as long as it leads outside"
    assert not report["value"][-1].startswith("HTTP"), "and no longer"
    assert any("loopback" in each["reason"] for each in refused_entries(report)), report["network"]
    assert {entry[1] for entry in world.seen()["tcp"]} == {"5.5.5.5"}, "127.0.0.1 was never reached"


# --- what is beside the network -------------------------------------------------------------------------------------

LISTENERS = """
import socket, subprocess, sys
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0pctx-test-abstract"); abstract.listen()
local = socket.socket(); local.bind(("127.0.0.1", 7070)); local.listen()
socket.create_connection(("127.0.0.1", 7070), timeout=3).close()
socket.socket(socket.AF_UNIX).connect("\\0pctx-test-abstract")
abstract.accept(), local.accept()
print("reached outside", flush=True)
print(subprocess.run(sys.argv[1:], capture_output=True, text=True).stdout.strip())
for listener in (abstract, local):
    listener.settimeout(0.3)
    try: listener.accept(); print("reached from inside")
    except TimeoutError: pass
"""


def test_services_of_the_host_stay_out_of_reach(world, networked, sandbox_bin):
    inside = """
def abstract():
    s = socket.socket(socket.AF_UNIX); s.connect("\\0pctx-test-abstract"); return "connected"
tell([attempt(abstract)[0], *[attempt(raw, a, 7070, b"x")[0] for a in ("127.0.0.1", "::1", "77.0.0.1", "2600:77::1")]])
"""
    box = [sandbox_bin, "run", "-q", "--network", "allow:*:7070,*", "--", "python3", "-c"]
    done = world.run(sys.executable, "-c", LISTENERS, *box, network_world.PRELUDE + inside)
    lines = done.stdout.splitlines()
    assert lines[0] == "reached outside" and len(lines) == 2, done
    assert all("Error" in each or each == "" for each in json.loads(lines[1])), done


def test_boxes_do_not_reach_one_another(world, networked, sandbox_bin):
    serve = """
import threading
l = socket.socket(); l.bind(("0.0.0.0", 7777)); l.listen()
print(connect("198.18.0.2", 7777), flush=True)
time.sleep(8)
"""
    both = """
import subprocess, sys, time
box, first, second = sys.argv[1:-2], sys.argv[-2], sys.argv[-1]
server = subprocess.Popen([*box, first], stdout=subprocess.PIPE, text=True)
print(server.stdout.readline().strip(), flush=True)
print(subprocess.run([*box, second], capture_output=True, text=True).stdout)
server.terminate(); server.wait()
"""
    reach = 'tell([attempt(connect, a, 7777)[0] for a in ("198.18.0.2", "127.0.0.1", "198.18.0.1")])'
    box = [sandbox_bin, "run", "-q", "--network", "allow:a.test", "--", "python3", "-c"]
    prelude = network_world.PRELUDE
    done = world.run(sys.executable, "-c", both, *box, prelude + serve, prelude + reach)
    lines = done.stdout.split("\n")
    assert lines[0] == "connected", "in its own box it is reached"
    assert json.loads(lines[1]) == [REFUSED] * 3


# --- what a guest can make the relay keep ---------------------------------------------------------------------------


def test_a_flood_of_attempts_is_counted_and_not_kept(networked):
    code = """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setblocking(False)
for n in range(3000):
    try: s.sendto(b"x", (f"9.{n >> 8}.{n & 255}.1", 1000))
    except OSError: pass
    if n % 50 == 0: time.sleep(0.005)
for n in range(1500):
    attempt(socket.gethostbyname, f"n{n}.evil.test")
tell(json.loads("1") if connect("a.test", 80) else 0)
"""
    report = networked(code, "allow:a.test", timeout=90)
    assert len(report["network"]["connections"]) <= 1001
    assert report["network"]["left_out"] > 0


def test_silent_connections_are_let_go_and_others_go_on(networked):
    code = """
silent = []
for _ in range(300):
    s = socket.socket(); s.settimeout(1)
    try:
        s.connect(("a.test", 443)); silent.append(s)
    except OSError: break
for s in silent: s.close()
for _ in range(100):
    said = attempt(tls, "a.test", "a.test")[0]
    if said == "HTTP/1.1 200 OK": break
    time.sleep(0.1)
tell([len(silent), said])
"""
    report = networked(code, "allow:a.test", "--files", "400")
    assert report["value"][1] == "HTTP/1.1 200 OK", report["value"]


def test_the_relay_is_confined(world, networked, sandbox_bin):
    look = """
import os, subprocess, sys, time
box = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, text=True)
box.stdout.readline()
def relay():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            status = dict(l.split(":", 1) for l in open(f"/proc/{pid}/status") if ":" in l)
        except OSError: continue
        if status["Name"].strip() == "pctx-relay" and status["PPid"].strip() == str(box.pid):
            return {k: status[k].split()[0] for k in ("Uid", "CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")}
for _ in range(200):  # it confines itself before it serves anybody, which on a busy machine is after the guest's start
    seen = relay()
    if seen and seen["Seccomp"] != "0": break
    time.sleep(0.1)
print(seen)
box.terminate(); box.wait()
"""
    box = [sandbox_bin, "run", "-q", "--network", "allow:a.test", "--", "sh", "-c", "echo; sleep 60"]
    done = world.run(sys.executable, "-c", look, *box)
    status = eval(done.stdout)  # our own program's
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == 0
    assert status["Uid"] != "0"
