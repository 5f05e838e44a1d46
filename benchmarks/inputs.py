"""python -m benchmarks.inputs: training time with each --kerbs-input, relative to untied.

An update of a whole model (forward, backward, Adam) on synthetic sentences, for the Transformer of the paper's size,
the LSTM 512/256 and the GRU language model. The choices take turns within one run, and medians are compared. All
batches have the same shape, so the ratio of updates is that of epochs.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import models, timing

CHOICES = ("untied", "usage", "posterior")


class Updates:
    """A callable that trains on the next synthetic batch."""

    def __init__(self, trainer: Any, batches: list[dict[str, Any]]) -> None:
        self.trainer, self.batches = trainer, iter(batches)

    def __call__(self) -> None:
        """Make one update."""
        self.trainer.train_step([next(self.batches)])


def main() -> None:
    """Print the tables."""
    parser = timing.parser("inputs", __doc__ or "")
    parser.add_argument("--models", nargs="+", choices=models.MODELS, default=list(models.MODELS))
    parser.add_argument("--words", type=int, default=10000)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--length", type=int, default=20)
    args = parser.parse_args()
    for model in args.models:
        torch.manual_seed(0)
        size = (args.words, args.sentences, args.length)
        batches = [models.synthetic_batch(*size, model == "gru_lm") for _ in range(args.rounds + 1)]
        with tempfile.TemporaryDirectory() as name:
            folder = models.synthetic_data(Path(name), args.words)
            arms = {
                choice: Updates(models.trainer(folder, model, "KerBS", f"--cpu --kerbs-input {choice}"), batches)
                for choice in CHOICES
            }
        times = timing.race(arms, args.rounds)
        title = f"{model}, updates of {args.sentences} sentences of {args.length} words, {args.words} words"
        timing.show(title, times, "untied")
        timing.keep(args.results, "inputs", {"model": model, "size": size}, {"seconds": times})


if __name__ == "__main__":
    main()
