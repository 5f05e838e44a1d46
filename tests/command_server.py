"""Runs console commands in forks of a process that has imported torch and fairseq: an import takes most of their time.

``python command_server.py FOLDER`` listens on two sockets in FOLDER. Commands that come through ``fairseq.sock`` find
fairseq imported, those that come through ``plugin.sock`` also kerbs_fairseq; the first import it themselves, with the
environment that they were given. The server ends when its standard input does.

It must have one thread, and no tensor may have been computed: neither OpenMP nor torch survive a fork in use.
"""

import atexit
import contextlib
import gc
import importlib
import json
import logging
import os
import runpy
import select
import socket
import sys
import threading
from pathlib import Path
from typing import Any

FAIRSEQ = ("fairseq", "fairseq.trainer", "fairseq.sequence_generator", "torch._dynamo")
PLUGIN = ("kerbs_fairseq", *(f"kerbs_fairseq.{name}.command" for name in ("inspection", "report", "evaluation")))
FOLDER = Path(sys.argv[1])


def listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(16)
    return listener


def preload(modules: tuple[str, ...]) -> None:
    for name in modules:
        importlib.import_module(name)
    warm_up()
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # what is here stays, and its pages stay shared


def warm_up() -> None:
    """Let hydra read a command line: its parser learns from each one."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    arguments = "data --task translation --arch lstm --optimizer adam"
    convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments.split()))


def serve(listener: socket.socket) -> dict[str, Any]:
    """Wait for requests; returns once, in each process that is to run a command, with the request."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        with contextlib.suppress(ChildProcessError):  # there is none, or no more
            while os.waitpid(-1, 0 if sys.stdin in ready else os.WNOHANG)[0]:
                pass
        if sys.stdin in ready:
            sys.exit()
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        request, files = receive(connection)
        command = os.fork()
        if not command:
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            for other in (listener, connection):
                other.close()
            return request
        connection.sendall(f"{command}\n".encode())
        connection.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])}\n".encode())
        os._exit(0)


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A line of JSON, and the files to be standard input, output and error."""
    line, files, _, _ = socket.recv_fds(connection, 1 << 16, 3)
    while not line.endswith(b"\n"):
        line += connection.recv(1 << 16)
    return json.loads(line), files


def run(request: dict[str, Any]) -> None:
    """What the interpreter does with ``PROGRAM ARGUMENT...`` or ``python -c TEXT``."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.executable = str(FOLDER / "bin" / "python")  # our commands look for others beside it
    program, *arguments = request["command"]
    name = Path(program).name
    if name == "fairseq-train":  # sets up its log before it imports fairseq, which sets up another one
        logging.root.handlers.clear()
    if name == "python" and arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
        return
    if name == "python":
        program, *arguments = arguments
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent)
    sys.modules["__main__"].__file__ = program  # also when it has ended with an exception
    runpy.run_path(program, run_name="__main__")


def exit_code(request: dict[str, Any]) -> int:
    try:
        run(request)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def main() -> None:
    listeners = {name: listen(FOLDER / f"{name}.sock") for name in ("fairseq", "plugin")}
    print("ready", flush=True)  # who connects now, waits
    preload(FAIRSEQ)
    if os.fork():
        request = serve(listeners["fairseq"])
    else:
        preload(PLUGIN)
        request = serve(listeners["plugin"])
    code = exit_code(request)
    # the end of an interpreter, without taking apart what is only borrowed
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
