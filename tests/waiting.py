"""How tests wait: for a condition, with a bound that holds on a machine that is slow."""

import time


def wait_until(condition, seconds=120.0, pause=0.02):
    """What the condition gave once it held. An error if it does not in time."""
    deadline = time.monotonic() + seconds
    while not (held := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(pause)
    return held
