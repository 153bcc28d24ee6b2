"""What `allow_network` and its companions mean: the engine reads them again, this says at decoration what is wrong."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

MOST_ENTRIES = 256
MOST_PORTS = 16
MOST_CONNECTIONS = 256
LEAST_RATE = 1024
DNS_PORT = 53
DEFAULT_PORTS = (80, 443)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?([KMGT](i?B)?|[kmg]|B)?")
_FORM = 'allow_network=["api.example.com"]'


def check_entries(entries: object) -> tuple[str, ...]:
    """The entries in normal form, sorted. TypeError for a wrong kind, ValueError for a wrong entry."""
    if entries is None:
        return ()
    if isinstance(entries, bool):
        raise TypeError(
            f"allow_network takes a list of host names, {_FORM}, not {entries}; leave it out for no network"
        )
    if isinstance(entries, str):
        raise TypeError(f"allow_network takes a list of host names: allow_network=[{entries!r}]")
    if not isinstance(entries, list | tuple | set | frozenset):
        raise TypeError(f"allow_network takes a list of host names, {_FORM}, not {type(entries).__name__}")
    found: set[str] = set()
    ports: set[int] = set()
    for entry in entries:
        if not isinstance(entry, str):
            raise TypeError(f"allow_network takes strings, not {entry!r}")
        host, port = _split(entry)
        found.add(_host(entry, host) + (f":{port}" if port is not None else ""))
        ports.update(DEFAULT_PORTS if port is None else (port,))
    if len(found) > MOST_ENTRIES:
        raise ValueError(f"allow_network takes at most {MOST_ENTRIES} entries, not {len(found)}")
    if len(ports) > MOST_PORTS:
        raise ValueError(f"allow_network takes at most {MOST_PORTS} different ports, not {len(ports)}")
    return tuple(sorted(found))


def check_private(ranges: Iterable[str]) -> tuple[str, ...]:
    """Ranges of addresses that stay closed unless they are named, in normal form."""
    if isinstance(ranges, str):
        raise TypeError(f"network_private takes a list: network_private=[{ranges!r}]")
    found = set()
    for text in ranges:
        try:
            network = ipaddress.ip_network(text)
        except (TypeError, ValueError):
            raise ValueError(
                f"network_private: {text!r} is no range of addresses; write for example '10.1.2.0/24'"
            ) from None
        if network.prefixlen < 8:
            raise ValueError(f"network_private: {text!r} is too wide; name the ranges that are needed one by one")
        found.add(str(network))
    return tuple(sorted(found))


def check_amount(name: str, value: object) -> int | str | None:
    """Bytes, as a whole number or as the command line takes them ("5M")."""
    if value is None:
        return None
    if isinstance(value, str):
        if not _SIZE.fullmatch(value):
            raise ValueError(f"{name}={value!r} is no size; write a number of bytes, or for example '5M'")
        return value
    return check_count(name, value, least=LEAST_RATE if name == "net_rate" else 1)


def check_count(name: str, value: object, least: int = 1, most: int | None = None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} takes a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{name}={value!r} is too small; it must be at least {least}")
    if most is not None and value > most:
        raise ValueError(f"{name}={value!r} is too large; it must be at most {most}")
    return value


def _wrong(entry: str, why: str) -> ValueError:
    return ValueError(f"allow_network: {entry!r} {why}")


def _split(entry: str) -> tuple[str, int | None]:
    """The host, and the port if one is named."""
    if not entry:
        raise _wrong(entry, "is empty")
    if "://" in entry:
        raise _wrong(entry, "is a URL; write the host's name alone, with :PORT behind it if need be")
    if any(c.isspace() for c in entry):
        raise _wrong(entry, "has blanks in it")
    host, colon, port = entry.rpartition(":")
    if entry.startswith("["):
        address, bracket, rest = entry[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _wrong(entry, "is no IPv6 address; write it as [2001:db8::1] or [2001:db8::1]:443")
        host, colon, port = f"[{address}]", rest[:1], rest[1:]
    elif not colon:
        host, port = entry, ""
    elif ":" in host:
        raise _wrong(entry, "is no host; write an IPv6 address in brackets, [2001:db8::1]:443")
    if not colon:
        return host, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise _wrong(entry, "has no port between 1 and 65535")
    if int(port) == DNS_PORT:
        raise _wrong(entry, "names port 53, which is the box's own name server")
    return host, int(port)


def _host(entry: str, host: str) -> str:
    if host == "*":
        return host
    if host.startswith("["):
        return f"[{_address(entry, host[1:-1], 6)}]"
    if "/" in host:
        if re.fullmatch(r"[0-9.]+/[0-9]+", host):
            return _address(entry, host, 4)
        raise _wrong(entry, "has a path in it; write the host's name alone")
    name = host.removesuffix(".").lower()
    if not name.isascii():
        try:
            hint = f"; write {name.encode('idna').decode()!r}"
        except UnicodeError:
            hint = ""
        raise _wrong(entry, f"has letters that are not ASCII{hint}")
    bare = name.removeprefix("*.")
    if "*" in bare:
        raise _wrong(entry, "has a wildcard where none can stand; write *.example.org, or * for every public host")
    labels = bare.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        if name.startswith("*"):
            raise _wrong(entry, "is no name")
        return _address(entry, bare, 4)
    if len(bare) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _wrong(entry, "is no host name")
    for label in labels:
        _check_punycode(entry, label)
    if labels[-1] == "localhost":
        raise _wrong(entry, "is the box itself, which needs no permission")
    return name


def _check_punycode(entry: str, label: str) -> None:
    """A label that claims to be an encoded one must be what the encoding of its own meaning gives."""
    if label[2:4] != "--":
        return
    try:
        meaning = label[4:].encode().decode("punycode") if label.startswith("xn--") else ""
        honest = not meaning.isascii() and meaning.encode("punycode").decode() == label[4:]
    except UnicodeError:
        honest = False
    if not honest:
        raise _wrong(entry, f"has a label that only looks like an encoded name: {label!r}")


def _address(entry: str, text: str, version: int) -> str:
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        raise _wrong(entry, "is neither a name nor an address") from None
    if network.version != version or "%" in text:
        raise _wrong(entry, "is neither a name nor an address")
    if network.is_loopback:
        raise _wrong(entry, "is the box itself, which needs no permission")
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
