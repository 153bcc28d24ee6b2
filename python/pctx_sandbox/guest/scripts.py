# mypy: ignore-errors
# ruff: noqa: SIM105
# The Zygote of scripts: the virtualenv's own interpreter, started as for any script, which does nothing but fork
# Workers that each run one script. Nothing is imported here that `python script.py` would not have imported by itself.
#
# Started by the Broker with the number of threads of a call and the modules to import ahead; descriptor 0 is the socket
# to the Broker. What this process says about itself counts for nothing: the Broker looks at every Worker from outside.
import os
import sys

SUPPORT = "/run/pctx"
FRESH = set(sys.modules)
MAIN = {name: value for name, value in globals().items() if name[:2] == "__"}
LASTING = set()  # what stays when a script ends
LONGEST_MESSAGE = 1 << 17
LAST_DESCRIPTOR = 64
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def load_native():
    """Our one native part, by its path: no name of ours is left in sys.modules."""
    machinery = sys.modules["_frozen_importlib_external"]
    path = SUPPORT + "/guest/_scripts.so"
    spec = sys.modules["_frozen_importlib"].ModuleSpec("_scripts", machinery.ExtensionFileLoader("_scripts", path))
    spec.origin = path
    return sys.modules["_imp"].create_dynamic(spec)


class Control:
    """The socket to the Broker, without the module for sockets."""

    def send(self, data):
        os.write(0, data)


def preload(threads, names, message):
    """Imports the modules that the user named, as the Zygote of functions does; returns what to do in each Worker."""
    sys.path.insert(0, SUPPORT)
    import json

    import guest.zygote as zygote

    sys.path.remove(SUPPORT)
    wanted = {name: os.environ.get(name, threads) for name in ONE_THREAD}
    given = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    forget_own()
    left = json.loads(message)["left"]
    loaded = zygote._preload(Control(), names, left)
    setters = zygote._thread_setters(wanted)
    for name, value in given.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    ready = json.dumps({"ready": {"preloaded": loaded, "left": left}}).encode()
    return ready, setters


def forget_own():
    """What we imported for ourselves is imported anew by whoever asks for it."""
    for name in [name for name in sys.modules if name not in FRESH]:
        del sys.modules[name]


def exactly(fd, size):
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            os._exit(0)  # nobody has a script for us
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_call():
    """(argv, source or None, has input). The rest of what comes on the socket is the script's own input."""
    size = int.from_bytes(exactly(3, 8), "little")
    return sys.modules["marshal"].loads(exactly(3, size))


def become_main(place):
    """A new __main__ with what the interpreter gives to one."""
    main = type(sys)("__main__")
    main.__dict__.clear()
    main.__dict__.update(MAIN)
    main.__dict__["__file__"] = place
    if MAIN.get("__loader__") is not None:
        main.__dict__["__loader__"] = type(MAIN["__loader__"])("__main__", place)
    if "__annotations__" in MAIN:
        main.__dict__["__annotations__"] = {}
    sys.modules["__main__"] = main
    return main.__dict__


def source_of(place):
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        text = f"{sys.executable}: can't open file {place!r}: [Errno {error.errno}] {error.strerror}\n"
        os.write(2, text.encode())
        os._exit(2)
    parts = []
    while part := os.read(fd, 1 << 20):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


def await_script(native, setters):
    """Waits for the one script that this Worker runs: its source, its place and its __main__."""
    os.chdir("/mnt")
    native.rehearse(b"pass\n", "<rehearsal>", {"__name__": "rehearsal"})
    os.write(3, b"R")
    argv, source, has_input, beside = read_call()
    if has_input:
        os.dup2(3, 0)
    os.close(3)
    os.chdir("/mnt")  # the folder may have been mounted since
    place = argv[0]
    if source is None:
        source = source_of(place)
    else:
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        view = memoryview(source)
        while view:
            view = view[os.write(fd, view) :]
        os.close(fd)
    sys.path.insert(0, os.path.dirname(place))
    if beside and "PYTHONPATH" not in os.environ:
        os.environ["PYTHONPATH"] = beside
        sys.path.insert(1, beside)
    sys.argv = argv
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.executable, *argv]
    for tell in setters:
        tell()
    return source, place, become_main(place)


def finish(native, ended):
    """Ends the script as the interpreter would: threads, exit functions, output, then what it made itself.

    What was there before the fork is not taken apart: it is nobody's, and to do so takes longer than most scripts.
    """
    status, interrupted = (ended, False) if isinstance(ended, int) else (exit_status(ended[0]), False)
    if ended == 2:
        status, interrupted = 130, True
    if "threading" in sys.modules:
        quietly(getattr(sys.modules["threading"], "_shutdown", None))
    import atexit

    quietly(atexit._run_exitfuncs)
    if not flush_streams() and not interrupted:
        status = 120
    take_apart()
    for fd in (1, 2):
        try:
            os.close(fd)  # whoever waits for our output need not wait for our memory to be given back
        except OSError:
            pass
    native.leave(status, interrupted)


def exit_status(code):
    """As the interpreter reads what sys.exit() was given."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    flush_streams()
    try:
        print(code, file=sys.stderr)
    except BaseException:
        pass
    return 1


def quietly(function):
    try:
        if function is not None:
            function()
    except BaseException:
        pass


def flush_streams():
    done = True
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name, None)
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except BaseException:
            done = done and name != "stdout"
    return done


def take_apart():
    """Lets go of the script's own objects and modules: files are written and __del__ is called with that."""
    import gc

    collect, objects = gc.collect, gc.get_objects  # the module may be the script's own, and go with it
    names = [name for name in sys.modules if name not in LASTING]
    own = [sys.modules.pop("__main__", None), *(sys.modules.pop(name) for name in reversed(names))]
    for module in own:
        space = getattr(module, "__dict__", None)
        if not isinstance(space, dict):
            continue
        for hidden in (True, False):
            for name in list(space):
                if (
                    isinstance(name, str)
                    and name != "__builtins__"
                    and (name[:1] == "_" and name[:2] != "__") == hidden
                ):
                    space[name] = None
    del own, module, space
    quietly(collect)
    for kind in ("TextIOWrapper", "BufferedWriter", "BufferedRandom"):
        wanted = getattr(sys.modules["_io"], kind)
        for each in objects():
            if isinstance(each, wanted):
                quietly(each.flush)


def start():
    threads, names = sys.argv[1], sys.argv[2:]
    here = sys.path.pop(0)
    sys.path_importer_cache.pop(here, None)
    native = load_native()
    message = os.read(0, LONGEST_MESSAGE)
    ready, setters = b'{"ready": {"preloaded": [], "left": {}}}', []
    if names:
        ready, setters = preload(threads, names, message)
    os.closerange(3, LAST_DESCRIPTOR)  # /dev/urandom, which some Pythons keep open and open anew
    import gc

    gc.collect()
    gc.freeze()  # a collection in a Worker would write to every object's header, and copy its page
    if "gc" not in FRESH and not names:
        del sys.modules["gc"]
    LASTING.update(sys.modules)
    os.chdir("/")
    os.write(0, ready)
    native.wait_for_fork()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed()  # the others notice the fork by themselves
    return native, setters


native, setters = start()
# Here and not in a function: the script finds as few frames below its own as can be.
finish(native, native.run(*await_script(native, setters)))
