"""Two hosts, as network namespaces of this machine, with two processes each: the same map everywhere, and restarts.

Needs root and the command ip (Linux); elsewhere it is skipped.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import BIN, ENVIRONMENT, MAP, MOVING, PACKAGE, QUICK, SMALL_TRANSFORMER, train, twin, weights

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]
HOSTS = {"kerbs-test-a": "10.77.0.1", "kerbs-test-b": "10.77.0.2"}
WAIT = 150  # seconds, at most


def ip(command: str, check: bool = True) -> None:
    subprocess.run(["ip", *command.split()], check=check, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and the command ip")
    with contextlib.ExitStack() as stack:
        for name in HOSTS:
            stack.callback(ip, f"netns delete {name}", check=False)
        try:
            for name in HOSTS:
                ip(f"netns add {name}")
            ip("link add veth-a netns kerbs-test-a type veth peer name veth-b netns kerbs-test-b")
            for (name, address), end in zip(HOSTS.items(), "ab"):
                ip(f"-n {name} addr add {address}/24 dev veth-{end}")
                ip(f"-n {name} link set veth-{end} up")
                ip(f"-n {name} link set lo up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        yield


def begin(host: str, command: str, log: Path, restarts: int) -> subprocess.Popen:
    """torchrun on one of the hosts."""
    end = host[-1]
    launcher = (
        f"ip netns exec {host} {BIN}/torchrun --nnodes 2 --nproc_per_node 2 --max-restarts {restarts} "
        f"--rdzv_backend c10d --rdzv_id kerbs --rdzv_conf is_host={int(end == 'a')},join_timeout=60 "
        f"--local_addr {HOSTS[host]} --rdzv_endpoint {HOSTS['kerbs-test-a']}:29517 --no-python "
    )
    # a store of its own for every start of the workers: torch 2.13 keeps the first, with addresses that are gone
    env = {**ENVIRONMENT, "GLOO_SOCKET_IFNAME": f"veth-{end}", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with log.open("w") as out:
        return subprocess.Popen((launcher + command).split(), env=env, stdout=out, stderr=out, start_new_session=True)


def workers(launcher: subprocess.Popen) -> list[int]:
    """The processes that torchrun has started."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    return [int(x) for x in children if b"fairseq-train" in Path(f"/proc/{x}/cmdline").read_bytes()]


@contextlib.contextmanager
def started(command: str, logs: dict[str, Path], restarts: int = 0) -> Iterator[list[subprocess.Popen]]:
    """The same command on both hosts; what is left of it at the end is ended, as a scheduler does."""
    running = [begin(host, command, logs[host], restarts) for host in HOSTS]
    try:
        yield running
    finally:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("killed", ["", "started again", "--max-restarts 1"])
def test_two_hosts_equal_one_process(pairs: Path, tmp_path: Path, killed: str) -> None:
    """``killed``: what follows when a worker is killed: somebody starts torchrun again, or it starts its workers."""
    options = f"{MOVING} --dropout 0 --attention-dropout 0 --lr 0.001 --max-update 15 --save-interval-updates 5"
    train(pairs, twin(SMALL_TRANSFORMER), tmp_path / "one", f"{options} --update-freq 4")
    command = (
        f"{BIN}/fairseq-train {pairs} --user-dir {PACKAGE} {twin(SMALL_TRANSFORMER)} {QUICK} {options} --cpu "
        f"--distributed-backend gloo --ddp-backend c10d --save-dir {tmp_path}/two"
    )
    logs = {host: tmp_path / f"{host}.log" for host in HOSTS}

    def kill_one(running: list[subprocess.Popen]) -> None:
        deadline = time.monotonic() + WAIT
        while not list((tmp_path / "two").glob("checkpoint_*_5.pt")):
            assert time.monotonic() < deadline, logs["kerbs-test-a"].read_text()[-3000:]
            time.sleep(0.02)
        os.kill(workers(running[-1])[-1], signal.SIGKILL)

    if killed == "started again":
        with started(command, logs) as running:
            kill_one(running)
            assert running[-1].wait(timeout=WAIT) != 0
    restarts = int(killed == "--max-restarts 1")  # only there: elsewhere one would hide a failure
    with started(command, logs, restarts) as running:
        if restarts:
            kill_one(running)
        codes = [process.wait(timeout=WAIT) for process in running]
    text = "".join(log.read_text() for log in logs.values())
    assert codes == [0, 0], text[-4000:]
    assert bool(re.search(r"Loaded checkpoint \S+ \(epoch \d+ @ \d+ updates\)", text)) is bool(killed)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert torch.equal(one[MAP], two[MAP])
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-3, msg=name)
