"""python -m benchmarks.hook: time of counting and moving senses, as a share of the time of an update.

The update is that of the output layer alone (loss, gradients, Adam): the rest of a model only makes the share smaller.
The parts are timed by themselves in the same run; an event's time is divided by the updates between two events.
"""

import argparse
import functools
import statistics
import time
from typing import Any, Callable

import torch
from fairseq.optim.adam import FairseqAdam

import kerbs_fairseq  # noqa: F401  (patches fairseq)
from kerbs_fairseq.modules import KernelizedBayesianSoftmax
from kerbs_fairseq.plugin.options import PRESETS, KerbsOptions, resolve
from kerbs_fairseq.plugin.update_hook import UpdateHook

SENSES = PRESETS["default"]["kerbs_senses"]


class Clock:
    """A record of the times of named parts."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def __call__(self, name: str, part: Callable[[], Any]) -> Any:
        """Run ``part`` and keep its time."""
        began = time.perf_counter()
        result = part()
        self.times.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def median(self, name: str) -> float:
        """Return the median time in seconds, without the first time."""
        return statistics.median(self.times[name][1:])


class Decoder:
    """The part of a decoder that reallocation uses."""

    def __init__(self, head: KernelizedBayesianSoftmax, words: int) -> None:
        self.head = head
        self.dictionary = argparse.Namespace(symbols=[str(i) for i in range(words)])


def measure(tokens: int, features: int, words: int, every: int, rounds: int) -> Clock:
    """Measure the times of ``step``, ``count``, ``update`` and ``event``."""
    torch.manual_seed(0)
    frequency = 1 / torch.arange(1.0, words + 1)  # Zipf's law, as in a text: most words are in no batch
    head = KernelizedBayesianSoftmax(features, words, counts=frequency * 1e7)
    args = KerbsOptions()
    args.kerbs_reallocate_every, args.kerbs_reallocate_after = every, 0
    hook = UpdateHook.from_options(args, resolve(args).given)
    adam = argparse.Namespace(lr=[1e-3], adam_betas="(0.9, 0.999)", adam_eps=1e-8, weight_decay=0.0)
    adam.use_old_adam, adam.tpu, adam.fp16_adam_stats, adam.distributed_world_size = True, False, False, 1
    optimizer = FairseqAdam(adam, list(head.parameters()))
    decoder, clock = Decoder(head, words), Clock()
    count = head.statistics.count
    head.statistics.count = lambda *a: clock("count", lambda: count(*a))  # type: ignore[method-assign]

    def step() -> None:
        optimizer.zero_grad()
        target = torch.multinomial(frequency, tokens, replacement=True)
        head.loss(torch.randn(tokens, features), target)[0].backward()
        optimizer.step()

    for number in range(1, rounds + 2):
        clock("step", step)
        clock("update", functools.partial(hook.after_update, decoder, optimizer, number * every + 1))
        clock("event", functools.partial(hook.after_update, decoder, optimizer, number * every))
    return clock


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hook", description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--features", type=int, default=256)
    parser.add_argument("--words", type=int, nargs="+", default=[10000, 30000])
    parser.add_argument("--every", type=int, default=100, help="updates between two events")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    sizes = f"{args.tokens} tokens, d {args.features}, {SENSES:g} senses per word"
    print(f"{sizes}, an event every {args.every} updates,")
    print(f"median of {args.rounds}, torch {torch.__version__}, {torch.get_num_threads()} threads; % of an update")
    print(f"{'words':>8}{'counting':>10}{'hook':>8}{'events':>8}{'in all':>8}")
    for words in args.words:
        clock = measure(args.tokens, args.features, words, args.every, args.rounds)
        whole = clock.median("step") / 100
        parts = [clock.median(name) / whole for name in ("count", "update", "event")]
        parts[2] = (parts[2] - parts[1]) / args.every
        print(f"{words:8}{parts[0]:10.3f}{parts[1]:8.3f}{parts[2]:8.3f}{sum(parts):8.3f}", flush=True)


if __name__ == "__main__":
    main()
