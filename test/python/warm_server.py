"""The server of `warm.py`: imports modules, and then becomes, in forks, the programs that it is asked for.

python warm_server.py FOLDER LISTENER MODULE ...     LISTENER is the number of a listening socket
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import threading
import types

# Read when Python starts or when something is imported: a program with others cannot be a fork.
EARLY = ("PYTHON", "JAX_", "TF_", "OMP_", "OPENBLAS_", "LD_")
LATE = ("PYTHONUNBUFFERED",)


def early(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY) and name not in LATE}


def main() -> None:
    folder, number, *modules = sys.argv[1:]
    environment = early(dict(os.environ))
    # A thread would be missing in forks, and Python 3.12 warns of that.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for module in modules:
        importlib.import_module(module)
    assert threading.active_count() == 1
    if "jax" in modules:
        from jax._src import xla_bridge

        assert not xla_bridge._backends
    # What is there already is shared by all forks as long as nobody writes to it.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(number)) as listener:
        forked = serve(listener)
    if forked is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    arguments, mine = forked
    if early(mine) != environment:
        os.execve(sys.executable, [sys.executable, *arguments], mine)
    os.environ.clear()
    os.environ.update(mine)
    os._exit(ended(arguments))


def serve(listener: socket.socket) -> tuple[list[str], dict[str, str]] | None:
    """Forks and tells how forks ended, until nobody can ask; in a fork, what it is to be: arguments and environment."""
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends who asks, and so the forks
    running: dict[socket.socket, int] = {}  # with whom wants to know of it
    while True:
        ready, _, _ = select.select([0, wake, listener, *running], [], [])
        if wake in ready:
            os.read(wake, 4096)
            tell(running)
        for asker in [asker for asker in running if asker in ready]:  # only to say that it has gone
            os.kill(running[asker], signal.SIGKILL)
            os.waitpid(running.pop(asker), 0)
            asker.close()
        if listener in ready:
            asker, _ = listener.accept()
            length, files, _, _ = socket.recv_fds(asker, 8, 3)
            request = asker.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for file in (asker, *running):
                    file.close()
                for number in (wake, woken):
                    os.close(number)
                return dress(request, files)
            for number in files:
                os.close(number)
            asker.sendall(pid.to_bytes(8, "big", signed=True))
            running[asker] = pid
        if 0 in ready:
            return None


def tell(running: dict[socket.socket, int]) -> None:
    """Tells of each fork that has ended to who asked for it."""
    for asker, pid in list(running.items()):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(OSError):
                asker.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
            asker.close()
            del running[asker]


def dress(request: bytes, files: list[int]) -> tuple[list[str], dict[str, str]]:
    """Gives this process its files and its folder; returns its arguments and its environment."""
    arguments, environment, folder = json.loads(request)
    for target, number in enumerate(files):
        os.dup2(number, target)
        os.close(number)
    os.chdir(folder)
    buffering = 1 if "PYTHONUNBUFFERED" in environment else -1
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    return arguments, environment


def ended(arguments: list[str]) -> int:
    """Becomes what is asked for, and ends as Python does, but frees nothing: that would copy all that forks share."""
    code: object = 0
    try:
        become(arguments)
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code & 0xFF


def become(arguments: list[str]) -> None:
    """Does what `python` does with these arguments: -c CODE, -m MODULE, or a script's path, and its own arguments."""
    first, *rest = arguments
    if first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        sys.modules.pop(rest[0], None)  # runpy warns of what is imported and runs again
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
