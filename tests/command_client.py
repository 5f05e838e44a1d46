"""Has command_server.py run a command. ``python -IS command_client.py FOLDER PROGRAM ARGUMENT...`` stands in for it.

Scripts and other commands start the stand-in where they would start a console command.
"""

import json
import os
import signal
import socket
import sys
from typing import NoReturn, Optional

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kerbs_fairseq")
READ_AT_IMPORT = "KERBS_FAIRSEQ_SKIP_FIXES"


def ask(
    folder: str, command: list[str], env: dict[str, str], cwd: str, files: list[int], timeout: Optional[float] = None
) -> int:
    """Run a command with ``files`` as standard input, output and error; its exit code, negative for a signal."""
    # fairseq-hydra-train, which has no --user-dir, needs the plugin to come after its configuration
    uses_plugin = os.path.basename(command[0]).startswith("kerbs-") or PACKAGE in command[1:]
    preloaded = "plugin" if uses_plugin and READ_AT_IMPORT not in env else "fairseq"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(os.path.join(folder, f"{preloaded}.sock"))
        request = json.dumps({"command": command, "env": env, "cwd": cwd})
        socket.send_fds(connection, [request.encode() + b"\n"], files)
        with connection.makefile() as answers:
            process = int(answers.readline())
            try:
                return int(answers.readline())
            except BaseException:  # it took too long, or the stand-in got a signal
                os.kill(process, signal.SIGKILL)
                raise


def stop(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    code = ask(sys.argv[1], sys.argv[2:], dict(os.environ), os.getcwd(), [0, 1, 2])
    sys.exit(code if code >= 0 else 128 - code)
