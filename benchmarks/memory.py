"""``python -m benchmarks.memory``: peak memory of the KerBS loss, forward and backward, against the table it avoids.

Each case runs in a process of its own; the peak is what the process needed above its inputs, outputs and gradients
not counted. The last column compares it with one (tokens, senses) table of float32.
"""

import argparse
import resource
import subprocess
import sys

CASES = ((1024, 60000), (8192, 20000), (8192, 60000))


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def case(tokens: int, senses: int, features: int) -> None:
    """Run one case and print the growth of the peak in MiB."""
    import torch

    from kerbs_fairseq.functional.fused import fused_loss
    from kerbs_fairseq.functional.words import slots_of

    torch.manual_seed(0)
    words = senses // 3
    sense_to_word = torch.arange(words).repeat_interleave(3)
    slots = slots_of(sense_to_word, words, 4)
    h, w = torch.randn(tokens, features), torch.randn(len(sense_to_word), features) * features**-0.5
    theta = torch.randn(len(sense_to_word)) * 0.1
    for x in (h, w, theta):
        x.requires_grad_()
    target = torch.randint(0, words, (tokens,))
    fused_loss(h[:4], w, theta, slots, target[:4])[
        0
    ].backward()  # what is allocated once, by torch and by the gradients
    before = peak()
    fused_loss(h, w, theta, slots, target)[0].backward()
    print(peak() - before)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--features", type=int, default=64, help="size of a feature vector")
    parser.add_argument("--case", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        tokens, senses = args.case
        case(tokens, senses, args.features)
        return
    print(f"{'tokens':>8}{'senses':>8}{'peak MiB':>10}{'table MiB':>11}{'ratio':>8}", flush=True)
    for tokens, senses in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", "--features", str(args.features)]
        done = subprocess.run(
            [*command, "--case", str(tokens), str(senses)], capture_output=True, text=True, check=True
        )
        grown, table = float(done.stdout), tokens * senses * 4 / 2**20
        print(f"{tokens:8}{senses:8}{grown:10.1f}{table:11.1f}{grown / table:8.3f}", flush=True)


if __name__ == "__main__":
    main()
