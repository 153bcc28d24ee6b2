"""The network of warm calls: ready before the call, bounded like a run's, and its relay may die.

Everything runs in an internet of the tests' own (network_world): no packet leaves this machine.
"""

import pytest

# The Broker's children, by their names.
CHILDREN = """
        import json, os, re, signal, subprocess, time
        from pctx_sandbox import sandbox

        def broker(*words):
            command = [os.environ["PCTX_SANDBOX_BINARY"], "status", *words]
            return subprocess.run(command, capture_output=True, text=True).stdout

        def child(name):
            parent = re.search(r"pid (\\d+)", broker()).group(1)
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    told = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status") if ":" in line)
                except OSError:
                    continue
                if told["Name"].strip() == name and told["PPid"].strip() == parent and "Z" not in told["State"]:
                    return int(pid)

        def wait_for(condition):
            until = time.monotonic() + 60
            while not condition() and time.monotonic() < until:
                time.sleep(0.05)
            assert condition()
"""


def test_the_death_of_the_relay_costs_connections_only(called):
    value = called(
        CHILDREN
        + """
        @sandbox(allow_network=["a.test", "db.test:5432"])
        def fetch(wait):
            import json, socket, urllib.request
            with socket.create_connection(("db.test", 5432), timeout=20) as kept:
                first = kept.recv(10).decode()
                print("ready", flush=True)
                try:
                    cut = kept.recv(10).decode() if wait else ""
                except OSError:
                    cut = ""
            return [first, cut, json.load(urllib.request.urlopen("http://a.test/", timeout=10))["host"]]

        def kill_relay():
            first = child("pctx-relay")
            os.kill(first, signal.SIGKILL)
            wait_for(lambda: child("pctx-relay") not in (first, None))

        if __name__ == "__main__":
            before = fetch(False)
            future = fetch.submit(True)
            time.sleep(1)
            kill_relay()
            values = [before, future.result(timeout=60), fetch(False)]
            # One that dies again and again comes back, after growing pauses.
            for _ in range(4):
                kill_relay()
            print(json.dumps([*values, fetch(False)]))
    """
    )
    assert value == [["ready\n", "", "a.test"]] * 4


@pytest.mark.root_only  # others may not look into a Worker's network
def test_a_waiting_worker_has_its_network_before_the_call(called):
    value = called(
        CHILDREN
        + """
        @sandbox(allow_network=["a.test", "a.test:8080"])
        def fetch():
            import json, urllib.request
            return json.load(urllib.request.urlopen("http://a.test:8080/", timeout=20))["host"]

        def listening():
            # Networks other than this one in which somebody listens on 8080.
            found = set()
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    place = os.readlink(f"/proc/{pid}/ns/net")
                    rows = [line.split() for line in open(f"/proc/{pid}/net/tcp6")][1:]
                except OSError:
                    continue
                if place != os.readlink("/proc/self/ns/net") and any(
                    row[1].endswith(":1F90") and row[3] == "0A" for row in rows
                ):
                    found.add(place)
            return found

        if __name__ == "__main__":
            before = listening()
            first = fetch()
            wait_for(lambda: json.loads(broker("--json"))["pools"][0]["waiting"] > 0)
            wait_for(lambda: listening() - before)
            print(json.dumps([first, fetch()]))
    """
    )
    assert value == ["a.test:8080", "a.test:8080"]


@pytest.mark.parametrize(("limit", "reason"), [
    ({"net_bytes": "100K"}, "byte budget is used up"), ({"net_connections": 2}, "more than 2 connections at once"),
], ids=["net_bytes", "net_connections"])  # fmt: skip
def test_the_limits_of_a_function_bind_and_its_receipt_says_so(called, limit, reason):
    value = called(f"""
        import json
        from pctx_sandbox import sandbox

        def push():
            import socket
            kept, sent = [], 0
            try:
                for _ in range(4):
                    kept.append(socket.create_connection(("a.test", 9000), timeout=20))
                    kept[-1].sendall(b"take 1000000\\n" + bytes(1000000))
                    kept[-1].recv(10)
            except OSError as error:
                return type(error).__name__
            return "all went"

        if __name__ == "__main__":
            free = sandbox(allow_network=["a.test:9000"])(push)
            bound = sandbox(allow_network=["a.test:9000"], **{limit!r})(push).run()
            print(json.dumps([free(), bound.value, bound.receipt["network"], bound.receipt["limits"]]))
    """)
    free, bound, record, limits = value
    assert free == "all went" and bound in ("ConnectionResetError", "BrokenPipeError")
    assert [line for line in record["connections"] if reason in (line["reason"] or "")], record
    assert record["sent"] <= 100 << 10 if "net_bytes" in limit else record["sent"] >= 2000000
    assert limits[next(iter(limit))]["by"] == "relay"


def test_the_rate_of_a_function_holds(called):
    value = called("""
        import json
        from pctx_sandbox import sandbox

        @sandbox(allow_network=["a.test:9000"], net_rate="1M")
        def pull():
            import socket, time
            began, left = time.monotonic(), 2 << 20
            with socket.create_connection(("a.test", 9000), timeout=60) as stream:
                stream.sendall(b"send %d\\n" % left)
                while left > 0:
                    left -= len(stream.recv(1 << 16))
            return time.monotonic() - began

        if __name__ == "__main__":
            print(json.dumps(pull()))
    """)
    assert value >= 2 * 0.85, "how much slower a busy machine makes it is another test's matter"
