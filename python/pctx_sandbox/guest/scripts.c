/* What the Zygote of scripts needs and plain Python could only do with modules imported that a script of its own would
 * not find imported: wait for orders, fork, and run a program as `python script.py` does. On the stable ABI, so that
 * one file serves every Python from 3.8 on. */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ENDS 4 /* what a Worker holds: no input, its socket, its output, its errors */
#define MOST_FDS 32
#define FIRST_FREE 4
#define LAST_DESCRIPTOR 64

int pctx_fork(const int* namespaces, int namespace_count, const int* tasks, int task_count);

static pid_t worker; /* this process, if it is one */

/* How many libraries were loaded so far. */
static int count_loaded(struct dl_phdr_info* info, size_t size, void* count) {
  (void)size;
  *(unsigned long long*)count = info->dlpi_adds;
  return 1;
}

static unsigned long long loaded(void) {
  unsigned long long count = 0;
  dl_iterate_phdr(count_loaded, &count);
  return count;
}

static unsigned long long loaded_at_first;

/* One order with its descriptors; how many of them are namespaces stands behind the F. -1 when the Broker is gone. */
static int receive(int* fds, int* count) {
  char text[16] = {0};
  struct iovec data = {text, sizeof text - 1};
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(MOST_FDS * sizeof(int))];
  } control;
  struct msghdr message = {
      .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
  ssize_t got;
  do got = recvmsg(0, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  if (got <= 1 || text[0] != 'F') return -1;
  const struct cmsghdr* header = CMSG_FIRSTHDR(&message);
  *count = 0;
  if (header != NULL && header->cmsg_type == SCM_RIGHTS) {
    *count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(fds, CMSG_DATA(header), (size_t)*count * sizeof(int));
  }
  return text[1] - '0';
}

/* Returns in the Worker, and nowhere else. */
static PyObject* wait_for_fork(PyObject* self, PyObject* nothing) {
  (void)self, (void)nothing;
  for (;;) {
    int fds[MOST_FDS], count = 0, namespaces = 0;
    Py_BEGIN_ALLOW_THREADS;
    namespaces = receive(fds, &count);
    Py_END_ALLOW_THREADS;
    if (namespaces < 0 || count < ENDS + namespaces) _exit(0);
    PyOS_BeforeFork();
    const int answer = pctx_fork(fds + ENDS, namespaces, fds + ENDS + namespaces, count - ENDS - namespaces);
    if (answer == 0) {
      PyOS_AfterFork_Child();
      worker = getpid();
      loaded_at_first = loaded();
      if (dup2(fds[0], 0) < 0 || dup2(fds[2], 1) < 0 || dup2(fds[3], 2) < 0 || dup2(fds[1], 3) < 0) _exit(126);
      for (int fd = FIRST_FREE; fd < LAST_DESCRIPTOR; ++fd) close(fd);
      Py_RETURN_NONE;
    }
    PyOS_AfterFork_Parent();
    for (int i = 0; i < count; ++i) close(fds[i]);
    char text[16];
    const int size = snprintf(text, sizeof text, "%d", answer > 0 ? 0 : -answer);
    if (send(0, text, (size_t)size, MSG_NOSIGNAL) < 0) _exit(0);
  }
}

static PyObject* compiled(PyObject* source, PyObject* name) {
  PyObject* builtins = PyEval_GetBuiltins();
  PyObject* compile = builtins ? PyDict_GetItemString(builtins, "compile") : NULL;
  /* 0, 1: no flags, and none of the program that calls us. */
  return compile ? PyObject_CallFunction(compile, "OOsii", source, name, "exec", 0, 1) : NULL;
}

/* What sys.exit() was given, as a tuple of one. The exception is gone then. */
static PyObject* exit_code(void) {
  PyObject *kind, *value, *traceback;
  PyErr_Fetch(&kind, &value, &traceback);
  PyErr_NormalizeException(&kind, &value, &traceback);
  PyObject* code = value ? PyObject_GetAttrString(value, "code") : NULL;
  Py_XDECREF(kind);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return code ? Py_BuildValue("(N)", code) : NULL;
}

/* Runs the program: 0 if it came to its end, 1 after an exception, which has been printed, 2 if it was interrupted, or
 * what sys.exit() was given, in a tuple. Called from C alone, an exception has no frame of ours in its traceback. */
static PyObject* run(PyObject* self, PyObject* arguments) {
  (void)self;
  PyObject *source, *name, *globals;
  if (!PyArg_ParseTuple(arguments, "OOO", &source, &name, &globals)) return NULL;
  PyObject* code = compiled(source, name);
  PyObject* value = code ? PyEval_EvalCode(code, globals, globals) : NULL;
  Py_XDECREF(code);
  if (value != NULL) {
    Py_DECREF(value);
    return PyLong_FromLong(0);
  }
  if (PyErr_ExceptionMatches(PyExc_SystemExit)) return exit_code();
  const int interrupted = PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
  PyErr_Print();
  return PyLong_FromLong(interrupted ? 2 : 1);
}

static pid_t leaving; /* the Worker, once its script is over */
static int exit_status;

static __attribute__((noreturn)) int hold(void* nothing) {
  (void)nothing;
  for (;;) pause();
}

/* The kernel tells how a process ended after it has given its memory back, which takes longer than most scripts run. So
 * somebody else keeps the memory: a process that does nothing and dies with the box, which is killed at that news. If
 * there may be no other process, the news takes its time.
 *
 * Called last of all that was registered, since what was registered first is. What is left then are the last words of
 * libraries; those that were there from the beginning have none. */
static void keep_memory(void) {
  static char stack[16 * 1024] __attribute__((aligned(64)));
  if (leaving != getpid()) return;
  (void)clone(hold, stack + sizeof stack, CLONE_VM, NULL);
  if (loaded() != loaded_at_first) return;
  fflush(NULL);
  _exit(exit_status);
}

/* The end of a process whose interpreter has nothing left to say: what C libraries have to say comes now. */
static PyObject* leave(PyObject* self, PyObject* arguments) {
  (void)self;
  int status, interrupted;
  if (!PyArg_ParseTuple(arguments, "ii", &status, &interrupted)) return NULL;
  if (interrupted) { /* as a shell expects it of a program that was interrupted */
    PyOS_setsig(SIGINT, SIG_DFL);
    kill(getpid(), SIGINT);
  }
  if (getpid() == worker) leaving = worker; /* and not a process that it forked */
  exit_status = status;
  exit(status);
}

static PyMethodDef methods[] = {
    {"wait_for_fork", wait_for_fork, METH_NOARGS, NULL},
    {"run", run, METH_VARARGS, NULL},
    {"leave", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
/* Two phases, so that the module appears nowhere but where it was asked for. */
static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_scripts", .m_methods = methods,
                                    .m_slots = slots};

PyMODINIT_FUNC PyInit__scripts(void) {
  atexit(keep_memory);
  return PyModuleDef_Init(&module);
}
