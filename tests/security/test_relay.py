"""The relay as a process: a host, an internet and a guest, each a network namespace that the test makes itself, with
real name, HTTP and TLS servers. Boxes are not part of it; what a launcher makes in one, tests/relay/driver.cc makes."""

import os
import re

import pytest
from relay_scenarios import lines, logged
from relay_scenarios import run as world


def test_named_hosts_are_reached_by_every_kind_of_client_socket():
    seen = world(
        """
say(addresses("api.example.com"))
say(get("api.example.com"))
say(tls("api.example.com"))
say(get("six.example.com"))
say(exchange("db.internal", 5432, b"select"))
with connect("db.internal", 5432) as stream:
    say(stream.recv(100).decode())
for address in addresses("api.example.com"):
    say(get("api.example.com", address))
say(exchange("192.0.2.7", 8080, b"GET / HTTP/1.1\\r\\nHost: whatever\\r\\n\\r\\n"))
""",
        "api.example.com,six.example.com,db.internal:5432,192.0.2.7:8080",
        "--private",
        "10.0.0.0/24",
        extra_addresses=["192.0.2.7"],
    )
    said = seen["said"]
    assert said[0] == ["198.18.1.0", "fd70:6374:7800::1:0"]
    assert "Host: api.example.com" in said[1]
    assert said[2] == "api.example.com says hello"
    assert "Host: six.example.com" in said[3]
    assert said[4] == "welcome\nselectbye\n", "the half-closed side went on receiving"
    assert said[5] == "welcome\n", "a server that speaks first is not made to wait"
    assert all("Host: api.example.com" in text for text in said[6:8])
    assert "Host: whatever" in said[8]
    checks = sorted(line["check"] for line in lines(seen, allowed=True))
    assert checks == ["address", "host", "host", "host", "host", "name", "name", "sni"]
    line = lines(seen, name="db.internal", allowed=True)[0]
    assert (line["address"], line["port"], line["sent"], line["received"]) == ("10.0.0.5", 5432, 6, 18)
    assert all(line["reason"] == "" for line in lines(seen, allowed=True))


def test_everything_else_fails_at_once_and_stands_in_the_record():
    seen = world(
        """
say(get("api.example.com"))
say(attempt(lambda: addresses("evil.com")))
say(attempt(lambda: connect("api.example.com", 22)))
say(attempt(lambda: connect("93.184.216.34", 80)))
say(attempt(lambda: connect("93.184.216.34", 22)))
say(attempt(lambda: exchange("2606:2800:220:1::34", 80, b"GET / HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n")))
say(attempt(lambda: connect("2606:2800:220:1::34", 22)))
def udp(address, port):
    stream = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    stream.settimeout(8)
    stream.connect((address, port))
    stream.send(b"x" * 30)
    return stream.recv(100).decode()
say(attempt(lambda: udp("93.184.216.53", 53)))
say(attempt(lambda: udp("2606:2800:220:1::34", 54)))
say(attempt(lambda: exchange("198.18.1.77", 80, b"x")))
say(attempt(lambda: exchange("127.0.0.1", 80, b"x")))
""",
        "api.example.com",
    )
    said = seen["said"]
    assert "Host: api.example.com" in said[0]
    refused, reset = "ConnectionRefusedError", "ConnectionResetError"
    assert [what for what, _ in said[1:]] == ["gaierror", *[refused] * 3, reset, *[refused] * 3, reset, reset]
    assert all(seconds < 8 for _, seconds in said[1:]), "each error came before anybody's patience ended"
    assert lines(seen, name="evil.com", transport="dns", allowed=False)
    for address, port, transport in [
        ("93.184.216.34", 80, "tcp"),
        ("93.184.216.34", 22, "tcp"),
        ("93.184.216.53", 53, "udp"),
        ("2606:2800:220:1::34", 80, "tcp"),
        ("2606:2800:220:1::34", 22, "tcp"),
        ("2606:2800:220:1::34", 54, "udp"),
    ]:
        assert lines(seen, address=address, port=port, transport=transport, allowed=False), (address, port)
    assert set(logged(seen, "dns")) == {"api.example.com"}, "nothing of another name reached a resolver"
    assert len(logged(seen, "http_connection")) == 1


def test_the_names_outside_and_inside_must_agree():
    seen = world(
        """
http = lambda text: attempt(lambda: exchange("api.example.com", 80, text.encode()))
good = "GET /good HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n"
evil = "GET /evil HTTP/1.1\\r\\nHost: evil.com\\r\\n\\r\\n"
say(http(good + good))
for text in [evil, good + evil, "POST / HTTP/1.1\\r\\nHost: api.example.com\\r\\nContent-Length: 4\\r\\n"
             "Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n" + evil, 
             "CONNECT evil.com:443 HTTP/1.1\\r\\nHost: api.example.com\\r\\n\\r\\n"]:
    say(http(text))
upgrade = "GET / HTTP/1.1\\r\\nHost: api.example.com\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
say(http(upgrade + "\\r\\nframes"))
say(http(upgrade + "X: refuse\\r\\n\\r\\n" + evil))
say(tls("api.example.com"))
say(attempt(lambda: tls("evil.com", "api.example.com")))
say(attempt(lambda: tls("api.example.com", server_hostname=None)))
say(attempt(lambda: exchange("api.example.com", 443, b"SSH-2.0-x\\r\\n")))
""",
        "api.example.com",
    )
    said = seen["said"]
    assert said[0].count("Host: api.example.com") == 2
    assert "101 Switching" in said[5]
    assert said[7] == "api.example.com says hello"
    arrived = "".join(logged(seen, "http_bytes"))
    assert "evil" not in arrived
    assert "frames" in arrived, "after the server's 101 the connection is open"
    assert logged(seen, "sni") == ["api.example.com"]
    for reason in [
        "names another host",
        "length of the request",
        "CONNECT",
        "server name (SNI) is another",
        "no server name",
        "not TLS",
    ]:
        assert lines(seen, reason=reason, allowed=False), reason


def test_names_that_lead_to_closed_addresses_are_refused():
    names = [
        "db.internal",
        "alias.example.com",
        "loop.example.com",
        "mapped.example.com",
        "meta.example.com",
        "ula.example.com",
    ]
    seen = world(
        f"""
for name in {names}:
    say(attempt(lambda: get(name)))
say(attempt(lambda: get("host.example.com")))
say(get("mixed.example.com"))
""",
        ",".join([*names, "host.example.com", "mixed.example.com"]),
    )
    assert [what[0] for what in seen["said"][:6]] == ["gaierror"] * 6
    assert seen["said"][6][0] == "ConnectionResetError"
    assert "Host: mixed.example.com" in seen["said"][7]
    assert lines(seen, name="mixed.example.com", allowed=True)[0]["address"] == "93.184.216.34"
    assert lines(seen, name="alias.example.com", reason="a private address", allowed=False)
    assert lines(seen, name="mapped.example.com", reason="a cloud metadata address", allowed=False)
    assert lines(seen, name="host.example.com", reason="an address of this host", allowed=False)
    assert logged(seen, "http_connection") == ["::ffff:93.184.216.34"]


def test_a_second_answer_is_checked_like_the_first():
    seen = world(
        """
say(get("rebind.example.com"))
time.sleep(1.2)
say(attempt(lambda: get("rebind.example.com", "198.18.1.0")))
""",
        "rebind.example.com",
    )
    assert "Host: rebind.example.com" in seen["said"][0]
    assert seen["said"][1][0] == "ConnectionResetError"
    assert lines(seen, name="rebind.example.com", address="10.0.0.5", allowed=False)
    assert logged(seen, "http_connection") == ["::ffff:93.184.216.34"]


def test_the_whole_internet_is_not_the_neighbourhood():
    seen = world(
        """
say(get("evil.com"))
say(exchange("93.184.216.35", 80, b"GET / HTTP/1.1\\r\\nHost: any.name\\r\\n\\r\\n"))
say(exchange("2606:2800:220:1::34", 80, b"GET / HTTP/1.1\\r\\nHost: any.name\\r\\n\\r\\n"))
for address in ["10.0.0.5", "169.254.169.254", "fd00::5", "93.184.216.1", "::ffff:10.0.0.5"]:
    say(attempt(lambda: exchange(address, 80, b"GET / HTTP/1.1\\r\\n\\r\\n")))
say(attempt(lambda: get("evil.com", "api.example.com")))
say(attempt(lambda: connect("93.184.216.35", 22)))
""",
        "*",
    )
    assert all("HTTP/1.1 200" in text for text in seen["said"][:3])
    assert [what[0] for what in seen["said"][3:9]] == ["ConnectionResetError"] * 6
    assert seen["said"][9][0] == "ConnectionRefusedError"
    assert lines(seen, address="10.0.0.5", reason="this is a private address", allowed=False)
    assert lines(seen, address="169.254.169.254", reason="cloud metadata", allowed=False)
    assert lines(seen, address="93.184.216.35", port=22, allowed=False)
    assert len(logged(seen, "http_connection")) == 4


@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_rate_is_held(direction):
    size = 5_000_000
    seen = world(
        f"""
started = time.monotonic()
with connect("api.example.com", 9000) as stream:
    stream.sendall(b"{size if direction == "down" else 0}\\n")
    if {direction == "up"}:
        stream.sendall(b"x" * {size})
    stream.shutdown(socket.SHUT_WR)
    got = 0
    while piece := stream.recv(262144):
        got += len(piece)
say([got, time.monotonic() - started])
""",
        "api.example.com:9000",
        "--rate",
        "2500000",
    )
    got, seconds = seen["said"][0]
    assert got == (size if direction == "down" else 0)
    if direction == "up":
        assert logged(seen, "bulk") == [size]
    assert seconds >= 2.0 * 0.85, "how much slower a busy machine makes it is another test's matter"


def test_the_byte_budget_cuts_to_the_byte():
    seen = world(
        """
def push():
    with connect("api.example.com", 9000) as stream:
        stream.sendall(b"0\\n" + b"x" * 5_000_000)
        stream.shutdown(socket.SHUT_WR)
        return stream.recv(1).decode()
say(attempt(push))
say(attempt(lambda: exchange("api.example.com", 9000, b"0\\n")))
""",
        "api.example.com:9000",
        "--bytes",
        "1000000",
    )
    assert [what[0] in ("ConnectionResetError", "BrokenPipeError") for what in seen["said"]] == [True, True]
    assert seen["record"]["sent"] == 1_000_000
    assert len(lines(seen, reason="byte budget is used up")) == 2


def test_more_connections_than_allowed_are_reset():
    seen = world(
        """
held = [connect("api.example.com", 5432) for _ in range(8)]
welcomed = [stream.recv(100).decode() for stream in held]
more = attempt(lambda: connect("api.example.com", 5432).recv(100).decode())
held.pop().close()
say([welcomed, more, wait_for(lambda: attempt(lambda: connect("api.example.com", 5432).recv(100)) == b"welcome\\n")])
""",
        "api.example.com:5432",
        "--connections",
        "8",
    )
    welcomed, more, again = seen["said"][0]
    assert welcomed == ["welcome\n"] * 8
    assert more[0] == "ConnectionResetError"
    assert again, "one that is closed makes room for another"
    assert lines(seen, reason="more than 8 connections at once", allowed=False)


def test_a_server_that_leaves_without_an_answer_leaves_no_connection_behind():
    """The gates of 80 and 443 wait for an answer before they read on."""
    seen = world(
        """
upgrade = "GET / HTTP/1.1\\r\\nHost: api.example.com\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\nX: vanish"
def leave(action):
    said = attempt(action)
    return said == "" or isinstance(said, list)
def ask():
    with connect("api.example.com", 80) as stream:
        stream.sendall(upgrade.encode() + b"\\r\\n\\r\\n")
        return stream.recv(100).decode()
for _ in range(3):
    assert wait_for(lambda: "Host:" in str(attempt(lambda: get("api.example.com"))))
    assert leave(ask)
    assert leave(lambda: tls("vanish.example.com"))
say(wait_for(lambda: "Host:" in str(attempt(lambda: get("api.example.com")))))
""",
        "api.example.com,vanish.example.com",
        "--connections",
        "2",
    )
    assert seen["said"] == [True]
    assert len(logged(seen, "tls_connection")) >= 3


@pytest.mark.rootless_only  # it takes the 10 s that a silent connection has, whoever the caller is
def test_what_a_guest_can_make_it_keep_is_bounded():
    """Floods of names, of half greetings and of attempts; afterwards a neighbour's request is answered as before."""
    seen = world(
        """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
dns.connect(("198.18.0.1", 53))
dns.settimeout(0.2)
def ask(number, name):
    labels = b"".join(bytes([len(part)]) + part for part in name.encode().split(b"."))
    dns.send(struct.pack("!HHHHHH", number & 0xffff, 0x100, 1, 0, 0, 0) + labels + b"\\0\\0\\1\\0\\1")
for number in range(3000):
    ask(number, f"n{number}.flood.example.org")
    ask(number, f"n{number}.evil.com")
    try:
        dns.recv(1000)
        dns.recv(1000)
    except OSError:
        pass
for number in range(2000):
    try:
        connect("93.184.216.34", 1000 + number)
    except OSError:
        pass
held = []
for number in range(300):
    try:
        stream = connect("api.example.com", 443)
        stream.sendall(b"\\x16\\x03\\x01\\x40\\x00" + b"\\x01\\x00\\x3f\\xfc" + b"x" * 15000)
        held.append(stream)
    except ConnectionResetError:
        pass
time.sleep(0.5)
alive = 0
for stream in held:
    stream.setblocking(False)
    try:
        stream.recv(1)
    except BlockingIOError:
        alive += 1
    except OSError:
        pass
say(alive)
say(wait_for(lambda: "Host: api.example.com" in str(attempt(lambda: get("api.example.com")))))
""",
        "api.example.com,*.example.org",
        timeout=100,
    )
    assert 0 < seen["said"][0] <= 256, "at once, not more"
    assert seen["said"][1], "once their 10 seconds are over"
    assert len([name for name in logged(seen, "dns") if "flood" in name]) <= 2 * 1024
    assert len(seen["record"]["connections"]) == 1000
    assert seen["record"]["left_out"] > 1000
    assert not logged(seen, "sni")


def test_a_killed_relay_costs_connections_and_nothing_else():
    seen = world(
        """
import signal
with connect("api.example.com", 5432) as stream:
    stream.recv(100)
    os.kill(os.getppid(), signal.SIGUSR1)
    say(attempt(lambda: stream.recv(100).decode()))
say(get("api.example.com"))
""",
        "api.example.com,api.example.com:5432",
    )
    assert seen["said"][0] in ("", ["ConnectionResetError", pytest.approx(0, abs=2)])
    assert "Host: api.example.com" in seen["said"][1]
    assert len(re.findall(r"^RELAY ", seen["stderr"], re.MULTILINE)) == 2


def test_the_relay_is_confined():
    seen = world(
        """
wait_for(lambda: "Seccomp:\\t2" in open(f"/proc/{relay()}/status").read())
status = dict(line.split(":\\t", 1) for line in open(f"/proc/{relay()}/status").read().splitlines())
say([status[key] for key in ("Name", "Seccomp", "NoNewPrivs", "CapEff", "CapBnd")] + status["Uid"].split()[:1])
say(attempt(lambda: os.listdir(f"/proc/{relay()}/root")))
say(attempt(lambda: len(os.listdir(f"/proc/{relay()}/fd"))))
""",
        "api.example.com",
    )
    name, seccomp, nnp, effective, bounding, uid = seen["said"][0]
    assert (name, seccomp, nnp, effective, bounding) == ("pctx-relay", "2", "1", "0" * 16, "0" * 16)
    if os.geteuid() == 0:
        assert uid == "65534"
        assert seen["said"][1] == [], "its root is empty"
    else:
        # Nobody of its own user namespace may look into another's process.
        assert seen["said"][1] == [] or seen["said"][1][0] == "PermissionError"
