"""pctx-sandbox 0.1.0, run by the Python of its own virtual environment: `agent PORT FOLDER` or `drive PORT`.

Its agent is meant for a podman container that a fresh install cannot build (the wheel lacks the image's recipe), so it
is started by hand, on loopback, without the container: faster than its users could have it. The driver uses its client
and decorator as they are, and answers each line on stdin (a function's name) with the milliseconds of one call.
"""

import sys
import time
from pathlib import Path


def agent(port: int, folder: str) -> None:
    import uvicorn
    from pctx_sandbox.agent import simple_agent

    # Its own default is a fixed folder in /tmp, which another user may have made.
    simple_agent.executor = simple_agent.SimpleExecutor(cache_dir=Path(folder))
    uvicorn.run(simple_agent.app, host="127.0.0.1", port=port, log_level="warning")


def drive(port: int) -> None:
    import pctx_sandbox.decorator
    from pctx_sandbox import sandbox
    from pctx_sandbox.client import SandboxClient

    client = SandboxClient(f"http://127.0.0.1:{port}", timeout=300)
    client.wait_for_healthy()
    pctx_sandbox.decorator._get_client = lambda: client

    @sandbox(timeout_sec=300)
    def noop():
        return None

    @sandbox(dependencies=["pandas"], timeout_sec=300)
    def process_data(data):
        import pandas as pd

        df = pd.DataFrame(data)
        return {"rows": len(df), "columns": list(df.columns)}

    calls = {"noop": noop, "frame": lambda: process_data([{"name": "Alice", "age": 30}])}
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        calls[line.strip()]()
        print((time.perf_counter() - start) * 1000, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        agent(int(sys.argv[2]), sys.argv[3])
    else:
        drive(int(sys.argv[2]))
