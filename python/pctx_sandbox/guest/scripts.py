# mypy: ignore-errors
# ruff: noqa: SIM105, UP036
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
COLLECT = OBJECTS = EXIT_FUNCTIONS = None  # of gc and atexit, whose names a script may take for its own
LONGEST_MESSAGE = 1 << 17
LAST_DESCRIPTOR = 64
# The first round after a fork copies pages, the second finds the caches that the first one filled (measured).
REHEARSALS = 2
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


def read_call(fd):
    """(argv, source or None, has input, folder to import from). What else comes there is the script's own input."""
    size = int.from_bytes(exactly(fd, 8), "little")
    return sys.modules["marshal"].loads(exactly(fd, size))


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


def put(place, source):
    fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    view = memoryview(source)
    while view:
        view = view[os.write(fd, view) :]
    os.close(fd)


def take_script(fd):
    """The script that is read there: its source, its place and its __main__."""
    argv, source, has_input, beside = read_call(fd)
    if has_input:
        os.dup2(fd, 0)
    os.close(fd)
    os.chdir("/mnt")  # the folder may have been mounted since
    place = argv[0]
    if source is None:
        source = source_of(place)
    else:
        put(place, source)
    sys.path.insert(0, os.path.dirname(place))
    if beside and "PYTHONPATH" not in os.environ:
        os.environ["PYTHONPATH"] = beside
        sys.path.insert(1, beside)
    sys.argv = argv
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [sys.executable, *argv]
    return source, place, become_main(place)


def rehearse(native):
    """Goes the whole way with a script that says nothing, so that a call finds its pages copied; leaves no trace."""
    main, path, argv = sys.modules["__main__"], list(sys.path), sys.argv
    orig_argv, python_path = getattr(sys, "orig_argv", None), os.environ.get("PYTHONPATH")
    place = "/tmp/rehearsal.py"
    call = sys.modules["marshal"].dumps(([place], b"print(end='')\n", False, "/mnt"), 2)
    for _ in range(REHEARSALS):
        reading, writing = os.pipe()
        os.write(writing, len(call).to_bytes(8, "little") + call)
        os.close(writing)
        wind_up(native.run(*take_script(reading)), lambda: None)
        os.unlink(place)
        sys.modules["__main__"], sys.path[:], sys.argv = main, path, argv
        if orig_argv is not None:
            sys.orig_argv = orig_argv
        if python_path is None:
            os.environ.pop("PYTHONPATH", None)


def await_script(native, setters):
    """Waits for the one script that this Worker runs."""
    os.chdir("/mnt")
    rehearse(native)
    os.write(3, b"R")
    found = take_script(3)
    for tell in setters:
        tell()
    return found


def last_words():
    if "threading" in sys.modules:
        quietly(getattr(sys.modules["threading"], "_shutdown", None))
    if EXIT_FUNCTIONS is not None:
        quietly(EXIT_FUNCTIONS)
    else:
        import atexit  # here each import has functions of its own

        quietly(atexit._run_exitfuncs)


def wind_up(ended, last_words):
    """Ends the script as the interpreter would: threads, exit functions, output, then what it made itself.

    What was there before the fork is not taken apart: it is nobody's, and to do so takes longer than most scripts.
    Returns the status, and whether it was interrupted.
    """
    status, interrupted = (ended, False) if isinstance(ended, int) else (exit_status(ended[0]), False)
    if ended == 2:
        status, interrupted = 130, True
    last_words()
    if not flush_streams() and not interrupted:
        status = 120
    take_apart()
    return status, interrupted


def finish(native, ended):
    status, interrupted = wind_up(ended, last_words)
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
    quietly(COLLECT)
    io = sys.modules["_io"]
    kinds = io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom
    files = [each for each in OBJECTS() if issubclass(type(each), kinds)]
    for each in sorted(files, key=lambda file: not issubclass(type(file), kinds[0])):  # texts into what lies below
        quietly(each.flush)


def start():
    global COLLECT, OBJECTS, EXIT_FUNCTIONS
    threads, names = sys.argv[1], sys.argv[2:]
    here = sys.path.pop(0)
    sys.path_importer_cache.pop(here, None)
    native = load_native()
    message = os.read(0, LONGEST_MESSAGE)
    ready, setters = b'{"ready": {"preloaded": [], "left": {}}}', []
    if names:
        ready, setters = preload(threads, names, message)
    os.closerange(3, LAST_DESCRIPTOR)  # /dev/urandom, which some Pythons keep open and open anew
    import atexit
    import gc

    COLLECT, OBJECTS = gc.collect, gc.get_objects
    if sys.version_info >= (3, 10):
        EXIT_FUNCTIONS = atexit._run_exitfuncs  # of the interpreter, however often the module is imported
    gc.collect()
    gc.freeze()  # a collection in a Worker would write to every object's header, and copy its page
    for own in ("atexit", "gc"):
        if own not in FRESH and not names:
            del sys.modules[own]
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
