"""python -m benchmarks.updates: time of training updates of whole models, KerBS and MoS against softmax.

Forward, backward and Adam, for the Transformer of the paper's size and the LSTM 512/256. With --data the batches
are those of an epoch over a preprocessed corpus, --stretch of them in every round; without, they are synthetic.
"""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import models, timing


def main() -> None:
    """Print the tables."""
    parser = timing.parser("updates", __doc__ or "")
    parser.add_argument("--models", nargs="+", choices=models.MODELS, default=["transformer", "lstm"])
    parser.add_argument("--data", type=Path, help="folder of fairseq-preprocess (default: synthetic sentences)")
    parser.add_argument("--max-tokens", type=int, default=4000, help="of a batch of --data (4000)")
    parser.add_argument("--stretch", type=int, default=3, help="updates in a round, with --data (3)")
    parser.add_argument("--words", type=int, default=10000, help="synthetic vocabulary (10000)")
    parser.add_argument("--sentences", type=int, default=128, help="of a synthetic batch (128)")
    parser.add_argument("--length", type=int, default=20, help="of a synthetic sentence (20)")
    parser.add_argument("--options", default="--cpu", help='of fairseq-train, such as "--fp16" for a GPU ("--cpu")')
    args = parser.parse_args()
    for model in args.models:
        with tempfile.TemporaryDirectory() as name:
            folder = args.data or models.synthetic_data(Path(name), args.words)
            running = {head: models.trainer(folder, model, head, args.options) for head in models.HEADS}
        words = len(running["softmax"].task.target_dictionary)
        torch.manual_seed(0)
        if args.data:
            needed = (args.rounds + 1) * args.stretch
            batches = list(itertools.islice(models.real_batches(running["softmax"], "train", args.max_tokens), needed))
            if len(batches) < needed:
                raise SystemExit(f"{args.data} has {len(batches)} batches, {needed} are needed: fewer --rounds")
            rounds = [batches[i : i + args.stretch] for i in range(0, len(batches), args.stretch)]
        else:
            rounds = [
                [models.synthetic_batch(words, args.sentences, args.length, model == "gru_lm")]
                for _ in range(args.rounds + 1)
            ]
        times = timing.race({head: Stretch(built, rounds) for head, built in running.items()}, args.rounds)
        tokens = sum(batch["ntokens"] for part in rounds for batch in part) // sum(map(len, rounds))
        timing.show(f"{model}, updates of {tokens} tokens, {words} words", times, "softmax")
        settings = {"model": model, "words": words, "tokens": tokens, "corpus": "real" if args.data else "synthetic"}
        settings["options"] = args.options
        timing.keep(args.results, "updates", settings, {"seconds": times})


class Stretch:
    """A callable that trains on the batches of the next round."""

    def __init__(self, trainer: Any, rounds: list[list[dict[str, Any]]]) -> None:
        self.trainer, self.rounds = trainer, iter(rounds)

    def __call__(self) -> None:
        """Train for one round."""
        for batch in next(self.rounds):
            self.trainer.train_step([batch])


if __name__ == "__main__":
    main()
