"""Scenarios of the relay as a process: a host, an internet and guests, each a network namespace of its own.

`run(guest, allow, ...)` plays one (tests/relay/world.py) and returns what everybody saw: `said` by the guests, the
`record` of the first and the `records` of all, the internet's `log`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent
DRIVER = Path(os.environ.get("PCTX_RELAY_DRIVER", TREE / "build/release/relay_driver"))
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
ZONE = {
    "api.example.com": ["93.184.216.34", "2606:2800:220:1::34"],
    "www.example.org": ["93.184.216.34"],
    "six.example.com": ["2606:2800:220:1::34"],
    "db.internal": ["10.0.0.5"],
    "evil.com": ["93.184.216.34"],
    "alias.example.com": {"cname": "db.internal"},
    "loop.example.com": ["127.0.0.1"],
    "mapped.example.com": ["::ffff:169.254.169.254"],
    "meta.example.com": ["169.254.169.254"],
    "ula.example.com": ["fd00::5"],
    "host.example.com": ["93.184.216.1"],
    "mixed.example.com": ["10.0.0.5", "93.184.216.34"],
    "rebind.example.com": {"turns": [["93.184.216.34"], ["10.0.0.5"]]},
    "again.example.com": ["93.184.216.35"],
    "resumed.example.com": ["93.184.216.36"],
    "vanish.example.com": ["93.184.216.53"],
}


def run(guest, allow, *options, timeout=60, **scenario):
    if not DRIVER.exists() and (TREE / "build/release/build.ninja").exists():  # `make demo` builds what is shown only
        build = ["cmake", "--build", str(TREE / "build/release"), "--target", "relay_driver"]
        subprocess.run(build, check=True, capture_output=True)
    assert os.access(DRIVER, os.X_OK), f"{DRIVER}: build the release preset, or name one with PCTX_RELAY_DRIVER"
    scenario = {"zone": ZONE, "timeout": timeout} | scenario
    scenario |= {"guest": guest, "driver": str(DRIVER), "options": ["--allow", allow, *options]}
    own = [] if os.geteuid() == 0 else ["-Ur"]
    done = subprocess.run(
        ["unshare", *own, "-nm", PYTHON, TREE / "tests/relay/world.py", json.dumps(scenario)],
        capture_output=True,
        text=True,
        timeout=timeout + 30,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["status"] == 0, seen["stderr"]
    return seen


def lines(seen, **wanted):
    """The lines of the record in which everything that is wanted stands."""
    return [
        line
        for line in seen["record"]["connections"]
        if all(value in line[key] if isinstance(value, str) else line[key] == value for key, value in wanted.items())
    ]


def logged(seen, key):
    return [entry[key] for entry in seen["log"] if key in entry]
