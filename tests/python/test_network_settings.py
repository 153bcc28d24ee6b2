"""`allow_network` and its companions: the decorator and the engine take the same entries and refuse the same ones."""

import json

import pytest
from pctx_sandbox import SandboxExecutor, sandbox, sandbox_async

RIGHT = [
    "api.example.com", "API.Example.COM.", "*.example.org", "*.example.org:443", "*", "*:8080", "a.b-c.d:1",
    "db.internal:5432", "192.0.2.7", "192.0.2.7:8080", "192.0.2.0/24:22", "[2001:db8::1]", "[2001:DB8:0::1]:443",
    "[2001:db8::/48]", "10.1.2.3", "xn--bcher-kva.example", "single:65535", "_srv.example.com",
]  # fmt: skip
WRONG = [
    "", " ", "http://example.com/", "https://example.com", "example.com/", "example.com/path", "exa mple.com",
    "a.*.example.com", "*example.com", "**.example.com", "example.*", "*.", "example.com:0", "example.com:70000",
    "example.com:", "example.com:http", "example.com:80:81", "example..com", ".example.com", "-a.example", "a-.example",
    "bücher.example", "xn--.example", "xn--abc-.example", "localhost", "a.localhost", "127.0.0.1", "127.1",
    "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "192.0.2", "192.0.2.300", "192.0.2.7/33", "192.0.2.1/24",
    "2001:db8::1", "[2001:db8::1", "[::1]", "[127.0.0.1]", "[fe80::1%eth0]", "user@example.com", "a,b",
    "x" * 64 + ".example", ".".join(["abcdefgh"] * 30), "exam\tple.com", "example.com:53",
]  # fmt: skip


def engine_says(pctx, entry):
    return pctx("run", "--policy", "/dev/stdin", "--print-policy", "--", "true", input=as_policy(entry))


def as_policy(entry):
    return json.dumps({"network": {"allow": [entry]}})


@pytest.mark.parametrize("entry", RIGHT)
def test_a_right_entry_has_one_normal_form(pctx, entry):
    settings = sandbox(allow_network=[entry])(lambda: None)._prepared.settings
    done = engine_says(pctx, entry)
    assert done.returncode == 0, done.stderr
    assert done.json()["network"] == settings.policy()["network"]
    assert engine_says(pctx, settings.allow_network[0]).json()["network"] == done.json()["network"]


@pytest.mark.parametrize("entry", WRONG)
def test_a_wrong_entry_is_refused_by_both_with_one_sentence(pctx, entry):
    with pytest.raises(ValueError, match="allow_network") as caught:
        sandbox(allow_network=[entry])
    assert "\n" not in str(caught.value)
    done = engine_says(pctx, entry)
    assert done.returncode == 125, done.stdout
    assert len(done.stderr.splitlines()) <= 2, done.stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"allow_network": ["a.example", 3]}, TypeError, "strings"),
        ({"allow_network": {"a.example": 1}}, TypeError, "list of host names"),
        ({"allow_network": [f"h{n}.example" for n in range(257)]}, ValueError, "at most 256"),
        ({"allow_network": [f"a.example:{n}" for n in range(1000, 1017)]}, ValueError, "at most 16"),
        ({"network_private": ["10.0.0.0/24"]}, ValueError, "allow_network, which is not there"),
        ({"net_rate": 1 << 20}, ValueError, "allow_network, which is not there"),
        ({"allow_network": ["a.example"], "network_private": "10.0.0.0/24"}, TypeError, r"\['10.0.0.0/24'\]"),
        ({"allow_network": ["a.example"], "network_private": ["10.0.0.1/8"]}, ValueError, "no range"),
        ({"allow_network": ["a.example"], "network_private": ["0.0.0.0/0"]}, ValueError, "too wide"),
        ({"allow_network": ["a.example"], "net_rate": "fast"}, ValueError, "no size"),
        ({"allow_network": ["a.example"], "net_rate": 1.5}, TypeError, "whole number"),
        ({"allow_network": ["a.example"], "net_rate": 100}, ValueError, "at least 1024"),
        ({"allow_network": ["a.example"], "net_bytes": -1}, ValueError, "at least 1"),
        ({"allow_network": ["a.example"], "net_connections": 0}, ValueError, "at least 1"),
        ({"allow_network": ["a.example"], "net_connections": 257}, ValueError, "at most 256"),
        ({"allow_network": ["a.example"], "net_connections": True}, TypeError, "whole number"),
    ],
)
def test_a_wrong_companion_is_refused_at_decoration(arguments, kind, words):
    for make in (sandbox, sandbox_async, SandboxExecutor):
        with pytest.raises(kind, match=words) as caught:
            make(**arguments)
        assert "\n" not in str(caught.value)


def test_all_of_it_reaches_the_policy():
    decorated = sandbox(
        allow_network=["b.example:22", "a.example", "a.example"],
        network_private=["10.1.2.0/24"],
        net_rate="5M",
        net_bytes=1000,
        net_connections=3,
    )(lambda: None)
    assert decorated._prepared.settings.policy()["network"] == {
        "allow": ["a.example", "b.example:22"],
        "private": ["10.1.2.0/24"],
        "rate": "5M",
        "bytes": 1000,
        "connections": 3,
    }
    assert decorated._sandbox_config["allow_network"] == ["a.example", "b.example:22"]


@pytest.mark.parametrize("empty", [None, [], ()])
def test_nothing_named_is_no_network(empty):
    assert sandbox(allow_network=empty)(lambda: None)._prepared.settings.policy()["network"] == "none"
