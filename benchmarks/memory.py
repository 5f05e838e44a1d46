"""python -m benchmarks.memory: peak memory of a training step under each head, and of the KerBS loss alone.

Each case runs in a separate process. For a whole model, the result is the peak of the process minus its peak before the
model was built. For the loss alone, it is the memory above inputs, outputs and gradients, compared with that of the
(tokens, senses) table of float32 that the loss avoids.
"""

import argparse
import resource
import sys
import tempfile
from pathlib import Path

from benchmarks import timing
from kerbs_fairseq.runs import process as commands

CASES = ((1024, 60000), (8192, 20000), (8192, 60000))
HEADS = ("softmax", "KerBS", "MoS")


def peak() -> float:
    """Return the peak memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def loss_case(tokens: int, senses: int, features: int) -> float:
    """Return how much the loss raises the peak, in MiB."""
    import torch

    from benchmarks.layer import Case, senses_of
    from kerbs_fairseq.functional.chunked_loss import chunked_loss

    torch.manual_seed(0)
    words = round(senses / 1.5)
    table, _ = senses_of(Case(tokens, features, words))
    h, target = torch.randn(tokens, features).requires_grad_(), torch.randint(0, words, (tokens,))
    chunked_loss(h[:4], table, target[:4]).loss.backward()  # allocations that torch and the gradients make once
    before = peak()
    chunked_loss(h, table, target).loss.backward()
    return peak() - before


def step_case(model: str, head: str, words: int, sentences: int, length: int) -> float:
    """Return how much the model and two training steps raise the peak, in MiB."""
    import torch

    from benchmarks import models

    with tempfile.TemporaryDirectory() as name:
        folder = models.synthetic_data(Path(name), words)
        before = peak()
        built = models.trainer(folder, model, head)
    for number in range(2):
        torch.manual_seed(number)
        built.train_step([models.synthetic_batch(words, sentences, length, model == "gru_lm")])
    return peak() - before


def in_its_own_process(*arguments: object) -> float:
    """Run one case in a separate process; return its result in MiB."""
    command = [sys.executable, "-m", "benchmarks.memory", "--case", *map(str, arguments)]
    done = commands.captured(command)
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Print the tables."""
    parser = timing.parser("memory", __doc__ or "", rounds=1)
    parser.add_argument("--features", type=int, default=64, help="size of a feature vector of the loss alone (64)")
    parser.add_argument("--words", type=int, default=10000)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        kind, *rest = args.case
        print(loss_case(*map(int, rest)) if kind == "loss" else step_case(*rest[:2], *map(int, rest[2:])))
        return
    size = (args.words, args.sentences, args.length)
    print(f"peak of a training step, {args.sentences} sentences of {args.length} words, {args.words} words", flush=True)
    for model in ("transformer", "lstm"):
        peaks = {head: in_its_own_process("step", model, head, *size) for head in HEADS}
        cells = "".join(f"   {head} {mib:.0f} MiB ({mib / peaks['softmax']:.2f})" for head, mib in peaks.items())
        print(f"  {model:<12}{cells}", flush=True)
        timing.keep(args.results, "memory of a step", {"model": model, "size": size}, {"MiB": peaks})
    print(f"peak of the loss\n{'tokens':>8}{'senses':>8}{'MiB':>10}{'table MiB':>11}{'ratio':>8}", flush=True)
    for tokens, senses in CASES:
        grown, table = in_its_own_process("loss", tokens, senses, args.features), tokens * senses * 4 / 2**20
        print(f"{tokens:8}{senses:8}{grown:10.1f}{table:11.1f}{grown / table:8.3f}", flush=True)
        timing.keep(args.results, "memory of the loss", {"tokens": tokens, "senses": senses}, {"MiB": grown})


if __name__ == "__main__":
    main()
