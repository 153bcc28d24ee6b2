"""Makes a host, an internet behind it and a guest in front of it, each a network namespace, runs one scenario and tells
what everybody saw. Called inside fresh namespaces: `unshare [-Ur] -nm python3 world.py SCENARIO`."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
ADDRESSES = ["93.184.216.34", "93.184.216.35", "93.184.216.36", "93.184.216.53", "10.0.0.5", "169.254.169.254"]
ADDRESSES6 = ["2606:2800:220:1::34", "fd00::5"]


def run(*words, **options):
    subprocess.run(words, check=True, **options)


def build(internet_pid, extra):
    """The host's side is 93.184.216.1; everything but its own loopback is behind the cable."""
    run("mount", "--make-rprivate", "/")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "cable", "type", "veth", "peer", "name", "eth0", "netns", str(internet_pid))
    run("ip", "addr", "add", "93.184.216.1/32", "dev", "cable")
    run("ip", "-6", "addr", "add", "2606:2800:220:1::1/64", "dev", "cable", "nodad")
    run("ip", "link", "set", "cable", "up")
    inside = ["nsenter", "-t", str(internet_pid), "-n", "ip"]
    run(*inside, "link", "set", "lo", "up")
    for address in [*ADDRESSES, *extra]:
        run(*inside, "addr", "add", address + "/32", "dev", "eth0")
    for address in ADDRESSES6:
        run(*inside, "-6", "addr", "add", address + "/64", "dev", "eth0", "nodad")
    run(*inside, "link", "set", "eth0", "up")
    run(*inside, "route", "add", "default", "dev", "eth0")
    run(*inside, "-6", "route", "add", "default", "dev", "eth0")
    run("ip", "route", "add", "default", "dev", "cable")
    run("ip", "-6", "route", "add", "default", "dev", "cable")


def main():
    scenario = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="relay-world-") as folder:
        folder = pathlib.Path(folder)
        certificate = folder / "both.pem"
        make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test"
        files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
        run("openssl", *make.split(), *files, stderr=subprocess.DEVNULL)
        certificate.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
        log = folder / "log"
        log.touch()
        # It waits for its cable before it binds.
        internet = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", 'read line; exec "$@"', "sh", sys.executable, HERE / "internet.py",
             json.dumps(scenario.get("zone", {})), log, certificate],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        mine = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{internet.pid}/ns/net") == mine:
            time.sleep(0.01)
        build(internet.pid, scenario.get("extra_addresses", []))
        internet.stdin.write(b"go\n")
        internet.stdin.flush()
        internet.stdout.readline()
        resolv, hosts = folder / "resolv.conf", folder / "hosts"
        resolv.write_text(scenario.get("resolv", "nameserver 93.184.216.53\n"))
        hosts.write_text("127.0.0.1 localhost\n" + scenario.get("hosts", ""))
        run("mount", "--bind", str(resolv), "/etc/resolv.conf")
        run("mount", "--bind", str(hosts), "/etc/hosts")
        guest = folder / "guest.py"
        guest.write_text((HERE / "guest.py").read_text() + scenario["guest"])
        done = subprocess.run(
            [scenario["driver"], *scenario.get("options", []), "--", sys.executable, guest],
            capture_output=True, text=True, timeout=scenario.get("timeout", 60), check=False,
        )  # fmt: skip
        internet.stdin.close()
        internet.wait(5)
        record = [line[7:] for line in done.stdout.splitlines() if line.startswith("RECORD ")]
        said = [line for line in done.stdout.splitlines() if not line.startswith("RECORD ")]
        print(
            json.dumps(
                {
                    "said": [json.loads(line) for line in said],
                    "record": json.loads(record[0]) if record else None,
                    "records": [json.loads(each) for each in record],
                    "log": [json.loads(line) for line in log.read_text().splitlines()],
                    "status": done.returncode,
                    "stderr": done.stderr[-4000:],
                }
            )
        )


main()
