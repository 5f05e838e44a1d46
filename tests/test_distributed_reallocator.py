"""The Reallocator under torch.distributed, without fairseq: all workers make the moves that one process makes."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import ENVIRONMENT

UPDATES, WORKERS = 9, 2
PROGRAM = f"""
import sys
import torch
import torch.distributed as dist
from kerbs_fairseq import KernelizedBayesianSoftmax, Reallocator

rank, workers, grouped, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "group", sys.argv[4]
group = None
if workers > 1:
    dist.init_process_group("gloo", init_method=f"file://{{folder}}/store", rank=rank, world_size=workers)
    group = dist.new_group([*range(workers)]) if grouped else None
torch.manual_seed(1)
layer = KernelizedBayesianSoftmax(6, 30, senses=2)
optimizer = torch.optim.SGD(layer.parameters(), 0.5)
mover = Reallocator(layer, optimizer, every=3, after=0, threshold=-1.0, moved_vector="split", process_group=group)
for update in range({UPDATES}):
    generator = torch.Generator().manual_seed(update)
    x, y = torch.randn(40, 6, generator=generator), torch.randint(0, 30, (40,), generator=generator)
    optimizer.zero_grad()
    loss, _ = layer.loss(x[rank::workers], y[rank::workers])
    loss.backward()
    for parameter in layer.parameters():
        if workers > 1:
            dist.all_reduce(parameter.grad)
        parameter.grad /= 40
    optimizer.step()
    mover.step()
torch.save(layer.state_dict(), f"{{folder}}/{{workers}}-{{rank}}.pt")
if workers > 1:
    dist.destroy_process_group()
"""


def train(folder: Path, workers: int, grouped: str = "") -> list[dict[str, torch.Tensor]]:
    """Start the workers, wait for them, and return the state of the layer of each."""
    command = [sys.executable, "-c", PROGRAM]
    started = [
        subprocess.Popen([*command, str(rank), str(workers), grouped, str(folder)], env=ENVIRONMENT)
        for rank in range(workers)
    ]
    assert [one.wait(timeout=120) for one in started] == [0] * workers
    return [torch.load(folder / f"{workers}-{rank}.pt") for rank in range(workers)]


@pytest.mark.e2e
@pytest.mark.parametrize("grouped", ["", "group"])
def test_workers_move_the_senses_that_one_process_moves(tmp_path: Path, grouped: str) -> None:
    (alone,), (first, second) = train(tmp_path, 1), train(tmp_path, WORKERS, grouped)
    assert int(alone["statistics.moves"]) > 3
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(first["senses.sense_to_word"], alone["senses.sense_to_word"])
    assert torch.equal(first["statistics.moves"], alone["statistics.moves"])
    for name in ("senses.vectors", "senses.theta_raw", "senses.bias_raw", "statistics.usage", "statistics.nll"):
        torch.testing.assert_close(first[name], alone[name], rtol=1e-4, atol=1e-5)
