"""Hosts by name: what is named is reached by any client as it is, and the receipt says what went where.

Everything runs in an internet of the tests' own (network_world): no packet leaves this machine.
"""

import json
import math
import pathlib
import shutil
import subprocess
import sys
import time

import pytest


def only(record, **wanted):
    """The one entry of a record that has these values."""
    found = [each for each in record["connections"] if all(each[key] == value for key, value in wanted.items())]
    assert len(found) == 1, json.dumps(record, indent=1)
    return found[0]


@pytest.mark.parametrize(("scheme", "port", "check"), [("http", 80, "host"), ("https", 443, "sni")])
def test_a_named_host_is_reached_and_written_down(networked, scheme, port, check):
    report = networked(f'tell(get("{scheme}://a.test/x"))', "allow:a.test")
    assert report["value"] == {"host": "a.test", "at": report["value"]["at"]}
    entry = only(report["network"], transport="tcp")
    assert (entry["name"], entry["port"], entry["check"], entry["allowed"]) == ("a.test", port, check, True)
    assert entry["address"] in ("5.5.5.5", "2600::5") and entry["reason"] is None
    assert entry["sent"] > 50 and entry["received"] > 50
    assert report["network"]["sent"] >= entry["sent"] and report["network"]["complete"]


def test_names_have_addresses_of_both_families(networked):
    code = 'tell(sorted({a[4][0] for a in socket.getaddrinfo("a.test", 80)}))'
    four, six = sorted(networked(code, "allow:a.test")["value"])
    assert four.startswith("198.1") and six.startswith("fd70:6374:7800:")


def test_a_host_with_ipv6_only_is_reached(networked):
    report = networked('tell(get("http://six.test/"))', "allow:six.test")
    assert report["value"]["at"] == "2600::6"


@pytest.mark.parametrize(
    ("entry", "address", "at"), [("7.7.7.7", "7.7.7.7", "7.7.7.7"), ("[2600::77]", "[2600::77]", "2600::77")]
)
def test_addresses_are_allowed_like_names(networked, entry, address, at):
    report = networked(f'tell(get("http://{address}/"))', f"allow:{entry}")
    assert report["value"] == {"host": address, "at": at}
    assert only(report["network"], transport="tcp")["address"] == at


def test_a_range_of_addresses_is_allowed(networked):
    code = 'tell([get("http://7.7.7.9/")["at"], attempt(connect, "7.7.8.1", 80)[0]])'
    assert networked(code, "allow:7.7.7.0/24")["value"] == ["7.7.7.9", "ConnectionRefusedError 111"]


def test_a_server_that_speaks_first_is_not_kept_waiting(networked):
    code = """
s = socket.create_connection(("db.test", 5432), timeout=5)
first = s.recv(100).decode()
s.sendall(b"question\\n")
tell([first, s.recv(100).decode()])
"""
    report = networked(code, "allow:db.test:5432")
    assert report["value"] == ["ready\n", "question\n"]
    assert only(report["network"], transport="tcp")["port"] == 5432


def test_a_wildcard_names_what_is_below_it(networked):
    code = 'tell([get("http://x.wild.test/")["at"], attempt(socket.gethostbyname, "wild.test")[0]])'
    assert networked(code, "allow:*.wild.test")["value"][0] == "5.5.5.6"
    assert networked(code, "allow:*.wild.test")["value"][1].startswith("gaierror")


def test_an_alias_is_followed(networked):
    report = networked('tell(get("http://c.test/"))', "allow:c.test")
    assert report["value"]["host"] == "c.test"


def test_the_hosts_file_of_the_host_counts(networked):
    assert networked('tell(get("http://hosts.test/"))', "allow:hosts.test")["value"]["at"] == "9.8.7.6"


def test_a_star_is_the_public_internet(networked):
    code = """
tell([get("http://a.test/")["host"], get("https://b.test/")["host"], get("http://8.8.4.4/")["at"],
      get("http://[2600::99]/")["at"], attempt(get, "http://10.1.2.3/")[0], attempt(get, "http://private.test/")[0]])
"""
    value = networked(code, "allow:*")["value"]
    assert value[:4] == ["a.test", "b.test", "8.8.4.4", "2600::99"]
    assert all(isinstance(each, str) and "Error" in each for each in value[4:]), value


def test_private_addresses_are_opened_one_by_one(networked):
    code = 'tell([attempt(lambda: get("http://private.test/")["at"])[0]])'
    assert networked(code, "allow:private.test")["value"] != ["10.1.2.3"]
    assert networked(code, "allow:private.test", "--network-private", "10.9.0.0/16")["value"] != ["10.1.2.3"]
    assert networked(code, "allow:private.test", "--network-private", "10.1.2.0/24")["value"] == ["10.1.2.3"]


def test_a_refused_name_is_one_ordinary_error_at_once(networked):
    report = networked('tell(attempt(socket.getaddrinfo, "b.test", 80))', "allow:a.test")
    result, seconds = report["value"]
    assert result == "gaierror -2" and seconds < 5
    entry = only(report["network"], name="b.test")
    assert entry["transport"] == "dns" and not entry["allowed"] and entry["reason"]


def test_half_closed_connections_go_on(networked):
    code = """
s = socket.create_connection(("a.test", 9000), timeout=5)
s.sendall(b"take 10\\n0123456789")
s.shutdown(socket.SHUT_WR)
tell(s.recv(100).decode())
"""
    assert networked(code, "allow:a.test:9000")["value"] == "taken\n"


def test_many_bytes_arrive_whole_in_both_directions(networked):
    code = """
import urllib.request
size = len(urllib.request.urlopen("http://a.test/bytes/30000000", timeout=30).read())
taken = urllib.request.urlopen("http://a.test/", data=bytes(20_000_000), timeout=30).read().decode()
tell([size, taken])
"""
    report = networked(code, "allow:a.test")
    assert report["value"] == [30_000_000, "taken"]
    assert 30_000_000 < report["network"]["received"] < 30_010_000
    assert 20_000_000 < report["network"]["sent"] < 20_010_000


def test_the_rate_holds_in_both_directions(networked):
    code = """
def timed(order, out):
    began = time.monotonic()
    s = socket.create_connection(("a.test", 9000), timeout=30)
    s.sendall(order + out)
    left = 20_000_000 if order.startswith(b"send") else 6
    while left > 0: left -= len(s.recv(1 << 18))
    return time.monotonic() - began
tell([timed(b"send 20000000\\n", b""), timed(b"take 20000000\\n", bytes(20_000_000))])
"""
    least = [math.inf, math.inf]
    for _ in range(5):  # others on this machine can make it slower, and never faster
        report = networked(code, "allow:a.test:9000", "--net-rate", "5000000")
        least = [min(pair) for pair in zip(least, report["value"], strict=True)]
        assert min(least) >= 4 * 0.85, report["value"]
        if max(least) <= 4 * 1.15:
            break
    assert max(least) <= 4 * 1.15, least
    assert report["receipt"]["limits"]["net_rate"]["by"] == "relay"


def test_the_budget_cuts_within_one_buffer(networked):
    code = """
s = socket.create_connection(("a.test", 9000), timeout=5)
s.sendall(b"take 100000000\\n")
sent = 0
try:
    while True: sent += s.send(bytes(65536))
except OSError as error: tell([sent, type(error).__name__])
"""
    report = networked(code, "allow:a.test:9000", "--net-bytes", "1M")
    assert report["value"][0] >= 1 << 20
    assert report["network"]["sent"] <= (1 << 20) + (1 << 16)
    assert only(report["network"], transport="tcp")["reason"]


def test_connections_are_counted(networked):
    code = """
kept = [socket.create_connection(("db.test", 5432), timeout=5) for _ in range(2)]
first = [s.recv(10).decode() for s in kept]
def third():
    with socket.create_connection(("db.test", 5432), timeout=5) as s: return s.recv(10).decode()
over = attempt(third)[0]
kept[0].close()
for _ in range(100):
    later = attempt(third)[0]
    if later == "ready\\n": break
    time.sleep(0.1)
tell([first, over, later])
"""
    report = networked(code, "allow:db.test:5432", "--net-connections", "2")
    first, over, later = report["value"]
    assert first == ["ready\n", "ready\n"] and over != "ready\n" and later == "ready\n"
    assert any(not each["allowed"] and each["reason"] for each in report["network"]["connections"])


# --- clients, unmodified --------------------------------------------------------------------------------------------

CLIENTS = {
    "curl": ["curl", "-s", "--max-time", "10", "https://a.test/x"],
    "curl over IPv6": ["curl", "-6", "-s", "--max-time", "10", "https://a.test/x"],
    "urllib": ["python3", "-c", "import urllib.request as u; print(u.urlopen('https://a.test/x').read().decode())"],
    "asyncio": [
        "python3", "-c",
        "import asyncio\n"
        "async def main():\n"
        "    r, w = await asyncio.open_connection('a.test', 443, ssl=True)\n"
        "    w.write(b'GET / HTTP/1.1\\r\\nHost: a.test\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "    print((await r.read()).split(b'\\r\\n\\r\\n')[1].decode())\n"
        "asyncio.run(main())",
    ],
    "node": ["node", "-e", "fetch('https://a.test/x').then(r => r.text()).then(console.log)"],
}  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_works_as_it_is(world, networked, sandbox_bin, skip_unless, client):
    command = CLIENTS[client]
    skip_unless(shutil.which(command[0]), f"{command[0]} on the PATH")
    box = [sandbox_bin, "run", "-q", "--network", "allow:a.test", "--ro", f"{world.ca}:/run/ca.pem"]
    box += ["--env", "SSL_CERT_FILE=/run/ca.pem", "--env", "CURL_CA_BUNDLE=/run/ca.pem"]
    box += ["--env", "NODE_EXTRA_CA_CERTS=/run/ca.pem", "--pids", "100", "--memory", "2G"]
    done = world.run(*box, "--", *command)
    assert done.returncode == 0 and '"host": "a.test"' in done.stdout, done


LITERAL = "http://[2600::77]/x"
CLIENTS_BY_ADDRESS = {
    name: [word.replace("https://a.test/x", LITERAL) for word in command]
    for name, command in CLIENTS.items()
    if name in ("curl", "urllib", "node")
}
CLIENTS_BY_ADDRESS["asyncio"] = [
    word.replace("'a.test', 443, ssl=True", "'2600::77', 80") for word in CLIENTS["asyncio"]
]


@pytest.mark.parametrize("client", CLIENTS_BY_ADDRESS)
def test_a_client_reaches_an_address_of_ipv6_as_it_is(world, networked, sandbox_bin, skip_unless, client):
    command = CLIENTS_BY_ADDRESS[client]
    skip_unless(shutil.which(command[0]), f"{command[0]} on the PATH")
    done = world.run(sandbox_bin, "run", "-q", "--network", "allow:[2600::77]", "--memory", "2G", "--", *command)
    assert done.returncode == 0 and '"at": "2600::77"' in done.stdout, done


@pytest.mark.parametrize(("entry", "url", "told"), [
    ("a.test", "https://a.test/x", '"host": "a.test"'), ("[2600::77]", LITERAL, '"at": "2600::77"'),
], ids=["by name", "by an address of IPv6"])  # fmt: skip
@pytest.mark.parametrize("library", ["requests", "httpx"])
def test_a_library_works_as_it_is(world, networked, sandbox_bin, packages, library, entry, url, told):
    code = f"import {library}; print({library}.get('{url}', verify='/run/ca.pem', timeout=10).text)"
    box = [sandbox_bin, "run", "-q", "--network", f"allow:{entry}", "--ro", f"{world.ca}:/run/ca.pem"]
    box += ["--ro", f"{packages}:/packages", "--env", "PYTHONPATH=/packages"]
    done = world.run(*box, "--", "python3", "-c", code)
    assert told in done.stdout, done


@pytest.mark.root_only
def test_psycopg_asks_a_real_database(world, networked, sandbox_bin, packages, skip_unless):
    programs = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    skip_unless(programs, "PostgreSQL's server")
    world.names({"db.test": {"A": ["127.0.0.1"]}})
    script = """
        as_postgres="setpriv --reuid=postgres --regid=postgres --clear-groups"
        data=$(mktemp -d /tmp/pctx-pg-XXXXXX) && chown postgres $data && cd $data && ip link set lo up || exit 1
        $as_postgres $1/initdb -A trust -D $data/db >/dev/null &&
        $as_postgres $1/pg_ctl -s -w -D $data/db -o "-p 15432 -h 127.0.0.1 -k $data" start >/dev/null; shift
        "$@"
        status=$?
        $as_postgres kill -INT $(head -1 $data/db/postmaster.pid); sleep 1; rm -rf $data; exit $status"""
    code = (
        "import psycopg\n"
        "with psycopg.connect('host=db.test port=15432 user=postgres dbname=postgres connect_timeout=10') as c:\n"
        "    print(c.execute('select 6 * 7').fetchone()[0])"
    )
    box = [sandbox_bin, "run", "-q", "--network", "allow:db.test:15432", "--network-private", "127.0.0.1/32"]
    box += ["--ro", f"{packages}:/packages", "--env", "PYTHONPATH=/packages"]
    done = world.run("sh", "-c", script, "sh", programs[-1], *box, "--", "python3", "-c", code)
    assert done.stdout == "42\n", done


def test_git_clones_over_https(world, networked, sandbox_bin, tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@a.test", *words], check=True)

    repository = world.folder / "www/r.git"
    git("init", "-q", "-b", "main", str(tmp_path / "r"))
    (tmp_path / "r/file").write_text("content")
    git("-C", str(tmp_path / "r"), "add", ".")
    git("-C", str(tmp_path / "r"), "commit", "-qm", "one")
    git("clone", "-q", "--bare", str(tmp_path / "r"), str(repository))
    git("-C", str(repository), "update-server-info")
    box = [sandbox_bin, "run", "-q", "--network", "allow:a.test", "--ro", f"{world.ca}:/run/ca.pem"]
    box += ["--env", "GIT_SSL_CAINFO=/run/ca.pem"]
    done = world.run(*box, "--", "sh", "-c", "git clone -q https://a.test/files/r.git /tmp/r && cat /tmp/r/file")
    assert done.stdout == "content", done


# --- functions ------------------------------------------------------------------------------------------------------


def test_a_function_reaches_what_it_names_and_tells_of_it(called):
    value = called("""
        import json
        from pctx_sandbox import sandbox

        @sandbox(allow_network=["a.test"], net_bytes="1M")
        def fetch(host):
            import urllib.request
            try:
                return urllib.request.urlopen(f"http://{host}/", timeout=5).read().decode()
            except OSError as error:
                return type(error).__name__

        if __name__ == "__main__":
            result = fetch.run("a.test")
            print(json.dumps([json.loads(result.value), fetch("b.test"), result.receipt["network"]]))
    """)
    assert value[0]["host"] == "a.test" and value[1] == "URLError"
    entry = only(value[2], transport="tcp")
    assert entry["name"] == "a.test" and entry["allowed"] and entry["check"] == "host" and entry["received"] > 50


def test_two_lists_have_two_pools_and_no_call_has_anothers(called):
    value = called("""
        import json
        from pctx_sandbox import sandbox

        def fetch(host):
            import urllib.request
            try:
                return json.load(urllib.request.urlopen(f"http://{host}/", timeout=5))["host"]
            except OSError as error:
                return type(error).__name__

        if __name__ == "__main__":
            one = sandbox(allow_network=["a.test"])(fetch)
            other = sandbox(allow_network=["b.test"])(fetch)
            none = sandbox(fetch)
            print(json.dumps([[f(h) for h in ("a.test", "b.test")] for f in (one, other, none, one)]))
    """)
    assert value == [["a.test", "URLError"], ["URLError", "b.test"], ["URLError", "URLError"], ["a.test", "URLError"]]


# --- what is asked for is shown -------------------------------------------------------------------------------------


def test_explain_and_print_policy_show_the_list(pctx):
    words = ["--network", "allow:A.test.,*.b.test:443", "--net-rate", "5M", "--network-private", "10.1.2.0/24"]
    told = pctx("explain", *words, "--", "true").stdout
    for line in ("allow    a.test", "allow    *.b.test:443", "private  10.1.2.0/24", "listen   80, 443"):
        assert line in told
    policy = pctx("run", *words, "--print-policy", "--", "true").json()
    assert policy["network"] == {
        "allow": ["a.test", "*.b.test:443"], "private": ["10.1.2.0/24"], "rate": 5 << 20,
    }  # fmt: skip


@pytest.mark.parametrize("words", [
    ("--network", "allow:"), ("--network", "allow:http://x/"), ("--network", "allow:exa mple"),
    ("--network", "allow:a.*.test"), ("--network", "allow:a.test:70000"), ("--network", "allow:xn--abc-.test"),
    ("--net-rate", "5M"), ("--network", "allow:a.test", "--net-rate", "1"), ("--network-private", "10.0.0.0/8"),
    ("--network", "allow:a.test", "--network-private", "10.0.0.1/8"), ("--network", "allow:a.test:53"),
    ("--network", "allow:a.test", "--net-connections", "0"),
])  # fmt: skip
def test_bad_entries_are_refused_before_anything_runs(refused, words):
    refused(*words, "--", "echo", "ran")


def test_a_box_without_network_has_no_record(report):
    assert "network" not in report("--", "true")["receipt"]


PROCESSES = """
import os
here, found = os.readlink("/proc/self/ns/net"), []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        name = open(f"/proc/{pid}/comm").read()
        ours = name.startswith(("pctx-relay", "pctx-sandbox"))
        if ours and os.readlink(f"/proc/{pid}/ns/net") == here: found.append(name)
    except OSError: pass
sockets = [line.split()[:3] for line in open("/proc/net/sockstat") if line.startswith(("TCP:", "UDP:"))]
print(found, sockets)
"""


def test_nothing_is_left_behind(world, networked):
    before = world.run(sys.executable, "-c", PROCESSES).stdout
    for _ in range(5):
        report = networked('tell([get("http://a.test/")["host"] for _ in range(20)])', "allow:a.test")
        assert len(report["network"]["connections"]) == 20
    until = time.monotonic() + 30
    while world.run(sys.executable, "-c", PROCESSES).stdout != before and time.monotonic() < until:
        time.sleep(0.1)
    assert world.run(sys.executable, "-c", PROCESSES).stdout == before
