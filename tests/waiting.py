"""How tests wait: for a condition, with a bound that holds on a machine that is slow."""

import time


def in_time(condition, seconds=20.0, pause=0.02):
    """What the condition gave once it held; something false if it did not in time."""
    deadline = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return held


def wait_until(condition, seconds=120.0, pause=0.02):
    """What the condition gave once it held. An error if it does not in time."""
    held = in_time(condition, seconds, pause)
    assert held, "it did not happen"
    return held
