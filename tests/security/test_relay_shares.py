"""The one relay of many boxes: what one guest does costs no other one anything, and its death costs connections only.

Scenarios as in test_relay, with several guests."""

import concurrent.futures
import re

import pytest
from relay_scenarios import lines, logged
from relay_scenarios import run as world

# Guests of one scenario see the same files, and tell each other by them what they have done.
FLAGS = """
import pathlib, signal
folder = pathlib.Path(__file__).parent
def raise_flag(name): (folder / name).touch()
def wait_for_flag(name): assert wait_for(lambda: (folder / name).exists(), 50), name
def hold_many(most):
    held = []
    for _ in range(most):
        stream = attempt(lambda: connect("api.example.com", 5432))
        if isinstance(stream, list) or attempt(lambda: stream.recv(100)) != b"welcome\\n": break
        held.append(stream)
    return held
"""


def relays(seen):
    return len(re.findall(r"^RELAY ", seen["stderr"], re.MULTILINE))


@pytest.mark.parametrize("greedy", [1, 2, 4])
def test_no_guest_takes_the_descriptors_of_another(greedy):
    seen = world(
        FLAGS
        + f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
if GUEST < {greedy}:
    if GUEST > 0: wait_for_flag(f"full-{{GUEST - 1}}")
    held = hold_many(256)
    say([GUEST, len(held)])
    raise_flag(f"full-{{GUEST}}")
    wait_for_flag("served")
else:
    wait_for_flag("full-{greedy - 1}")
    say([GUEST, [get("api.example.com"), tls("api.example.com"), len(hold_many(4))]])
    raise_flag("served")
""",
        "api.example.com,api.example.com:5432",
        "--guests",
        str(greedy + 1),
        "--files",
        "200",
    )
    said = dict(seen["said"])
    assert all(4 <= said[number] < 100 for number in range(greedy)), said
    page, hello, more = said[greedy]
    assert "Host: api.example.com" in page and hello == "api.example.com says hello" and more == 4
    assert relays(seen) == 1 and all(record["complete"] for record in seen["records"])
    reasons = {line["reason"] for record in seen["records"][:greedy] for line in record["connections"]}
    assert "the relay has no more descriptors for this box" in reasons, reasons
    assert not [line for line in seen["records"][greedy]["connections"] if "descriptors" in line["reason"]]


def test_a_guest_that_is_alone_has_more_than_it_may_open():
    """The control of the one above, with the limit that hosts have: nothing but the number of connections binds."""
    seen = world(
        FLAGS
        + """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
say(len(hold_many(300)))
""",
        "api.example.com:5432",
        "--files",
        "4096",
    )
    assert seen["said"] == [256]


def test_a_box_without_room_is_refused_and_the_others_go_on():
    seen = world(
        FLAGS
        + """
say([GUEST, attempt(lambda: get("api.example.com"))])
raise_flag(f"done-{GUEST}")
for other in range(3): wait_for_flag(f"done-{other}")
""",
        "api.example.com,api.example.com:5432",
        "--guests",
        "3",
        "--files",
        "40",
    )
    said = dict(seen["said"])
    assert all("Host: api.example.com" in said[number] for number in (0, 1)), said
    assert said[2][0] == "gaierror", "it is told at once"
    assert [record["complete"] for record in seen["records"]] == [True, True, False]
    assert "nofile" in seen["records"][2]["connections"][0]["reason"]
    assert relays(seen) == 1


def test_a_message_whose_descriptors_are_lost_does_not_end_the_relay():
    """The kernel itself runs out in the middle of a box's ends (MSG_CTRUNC)."""
    ports = ",".join(f"api.example.com:{port}" for port in range(9001, 9017))
    seen = world('say(attempt(lambda: addresses("api.example.com")))', ports, "--files", "24")
    assert seen["said"][0][0] == "gaierror"
    assert "nofile" in seen["record"]["connections"][0]["reason"] and relays(seen) == 1


KILL = """
import signal
def kill_relay():
    before = relay()
    os.kill(os.getppid(), signal.SIGUSR1)
    assert wait_for(lambda: relay() not in (before, None)), "another one takes its place"
"""


def test_a_relay_that_dies_again_and_again_comes_back():
    seen = world(
        KILL
        + """
for _ in range(8): kill_relay()
say(get("api.example.com"))
""",
        "api.example.com",
        timeout=120,
    )
    assert "Host: api.example.com" in seen["said"][0]
    assert relays(seen) == 9 and not seen["record"]["complete"]


def test_an_address_stands_for_the_same_name_whatever_relay_serves():
    seen = world(
        KILL
        + """
one, two = [[socket.gethostbyname(name)] for name in ("six.example.com", "api.example.com")]
kill_relay()
say([one[0], two[0], socket.gethostbyname("resumed.example.com"), socket.gethostbyname("api.example.com")])
say(exchange(two[0], 5432, b"by an address of the relay before"))
kill_relay()
say(exchange(two[0], 5432, b"and of the one before that"))
""",
        "six.example.com:5432,api.example.com:5432,resumed.example.com:5432",
    )
    assert seen["said"][0] == ["198.18.1.0", "198.18.1.1", "198.18.1.2", "198.18.1.1"]
    assert all("by an address" in text or "and of the one" in text for text in seen["said"][1:])
    assert {line["name"] for line in lines(seen, transport="tcp")} == {"api.example.com"}


def test_names_of_its_choice_stay_bounded_over_the_death_of_a_relay():
    """Otherwise a table full of them would leave no room for those of the list."""
    seen = world(
        KILL
        + """
def ask(first, last):
    found = 0
    for number in range(first, last): found += isinstance(attempt(lambda: addresses(f"n{number}.example.org")), list)
    return found
ask(0, 600)
kill_relay()
ask(600, 1100)
say(addresses("api.example.com"))
""",
        "*.example.org,api.example.com",
        zone={"api.example.com": ["93.184.216.34"]}
        | {f"n{number}.example.org": ["93.184.216.34"] for number in range(1100)},
        timeout=120,
    )
    assert len({name for name in logged(seen, "dns") if name.startswith("n")}) == 1024
    assert seen["said"][0] == ["198.18.5.0", "fd70:6374:7800::1:400"]


def test_a_killed_closer_is_replaced():
    seen = world(
        FLAGS
        + """
def closer():
    for pid in open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split():
        try: status = open(f"/proc/{pid}/status").read()
        except OSError: continue
        if status.startswith("Name:\\tpctx-closer\\n") and "\\nState:\\tZ" not in status: return int(pid)
if GUEST == 0:
    wait_for(closer)
    say(closer())
    os.kill(closer(), signal.SIGKILL)
    assert wait_for(lambda: closer() is None)
    raise_flag("killed")
else:
    wait_for_flag("killed")
    assert wait_for(closer)
    say(closer())
""",
        "api.example.com",
        "--guests",
        "2",
    )
    first, second = seen["said"]
    assert first and second and first != second


# --- what leaves by the name server ---------------------------------------------------------------------------------

ASK = """
def ask_again(name, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        attempt(lambda: addresses(name))
        time.sleep(0.05)
"""


@pytest.mark.parametrize("exists", [True, False], ids=["a name that exists", "a name that does not"])
def test_questions_about_names_of_its_choice_are_paid_for_every_time(exists):
    name = "z" * 20 + ".example.org"
    zone = {name: ["93.184.216.34"]} if exists else {}
    seconds = 3 if exists else 8  # answers are kept for one second and for five
    guest = f'say(attempt(lambda: addresses("{name}")))\n{ASK}ask_again("{name}", {seconds})'
    with concurrent.futures.ThreadPoolExecutor() as threads:  # two worlds that wait, each by itself
        budgets = [(), ("--bytes", "50")]
        worlds = [threads.submit(world, guest, "*.example.org", *each, zone=zone) for each in budgets]
        free, paid = [each.result() for each in worlds]
    assert logged(free, "dns").count(name) >= 4, "without a budget: asked again as soon as an answer is old, A and AAAA"
    if exists:
        assert paid["said"] == [["198.18.1.0", "fd70:6374:7800::1:0"]], "both families for the price of one question"
    assert logged(paid, "dns").count(name) == 2, "the budget has room for one question, A and AAAA"
    assert lines(paid, name=name, reason="byte budget is used up", allowed=False)


def test_connections_pay_for_their_questions_too():
    name = "z" * 20 + ".example.org"
    seen = world(
        f"""
address = socket.gethostbyname("{name}")
def knock():
    with connect(address, 5432) as stream: return stream.recv(100).decode()
until, said = time.monotonic() + 20, "welcome\\n"
while said == "welcome\\n" and time.monotonic() < until:
    said = attempt(knock)
    time.sleep(0.1)
say(said)
""",
        "*.example.org:5432",
        "--bytes",
        "100",
        zone={name: ["93.184.216.34"]},
    )
    assert seen["said"][0][0] == "ConnectionResetError"
    assert logged(seen, "dns").count(name) <= 6, "three times, A and AAAA"
    assert lines(seen, name=name, reason="byte budget is used up", allowed=False)


def test_many_questions_in_one_segment_are_all_answered():
    seen = world(
        """
def question(number):
    packed = struct.pack("!HHHHHH", number, 0x100, 1, 0, 0, 0) + b"\\3api\\7example\\3com\\0\\0\\1\\0\\1"
    return struct.pack("!H", len(packed)) + packed
with connect("198.18.0.1", 53) as stream:
    stream.sendall(b"".join(map(question, range(200))))
    answers, held = {}, b""
    while len(answers) < 200:
        held += stream.recv(65536)
        while len(held) >= 2 and len(held) >= 2 + struct.unpack("!H", held[:2])[0]:
            size = struct.unpack("!H", held[:2])[0]
            number, flags = struct.unpack("!HH", held[2:6])
            answers[number], held = flags & 15, held[2 + size:]
say([len(answers), sorted(set(answers.values()))])
""",
        "api.example.com",
    )
    assert seen["said"] == [[200, [0]]]


# --- what is seen of attempts ---------------------------------------------------------------------------------------


def test_datagrams_in_fragments_stand_in_the_record():
    seen = world(
        """
def shout(address, port, size):
    stream = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    stream.sendto(b"x" * size, (address, port))
    return size
say([attempt(lambda: shout(*each)) for each in (("2606:2800:220:1::34", 1001, 65527), ("2606:2800:220:1::34", 1002, 10),
                                                ("93.184.216.34", 1003, 65507))])
""",
        "api.example.com",
    )
    assert seen["said"] == [[65527, 10, 65507]], "the first is longer than what one packet holds"
    assert {line["port"] for line in lines(seen, transport="udp", allowed=False)} == {1001, 1002, 1003}


def test_attempts_that_nobody_had_time_to_read_are_counted():
    seen = world(
        """
import signal
stream = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
os.kill(relay(), signal.SIGSTOP)
for number in range(4000): attempt(lambda: stream.sendto(b"x", ("93.184.216.34", 1000)))
os.kill(relay(), signal.SIGCONT)
say(1)
""",
        "api.example.com",
    )
    read = sum(line["count"] for line in lines(seen, transport="udp"))
    assert read < 2000, "what waits for a reader has a bound"
    assert read + seen["record"]["left_out"] > 3000


# --- TLS ------------------------------------------------------------------------------------------------------------


def test_a_server_may_ask_for_a_second_greeting():
    seen = world('say(tls("again.example.com"))', "again.example.com")
    assert seen["said"] == ["again.example.com says hello"]
    assert set(logged(seen, "sni")) == {"again.example.com"}


def test_sessions_of_tls_1_2_are_resumed():
    seen = world(
        """
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.maximum_version = ssl.TLSVersion.TLSv1_2
session, resumed = None, 0
for _ in range(400):
    with connect("resumed.example.com", 443) as raw:
        with context.wrap_socket(raw, server_hostname="resumed.example.com", session=session) as stream:
            stream.sendall(b"hello")
            assert stream.recv(100) == b"resumable says hello"
            session = session or stream.session
            resumed += stream.session_reused
say(resumed)
""",
        "resumed.example.com",
        timeout=180,
    )
    assert seen["said"] == [399]
    assert not [line for line in seen["record"]["connections"] if line["reason"]]
