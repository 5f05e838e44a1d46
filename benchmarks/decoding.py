"""python -m benchmarks.decoding: tokens per second of beam search, KerBS and MoS against softmax.

Models have the paper's sizes and random weights. Every search is made to run to the same length, so that all arms do
the same work. With --data the source sentences are those of a preprocessed test set.
"""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import torch
from fairseq import options, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from benchmarks import models, timing


def generator(built: Any, beam: int, length: int) -> Any:
    """Return a beam search that always runs for ``length`` steps."""
    command = f"unused --path unused --beam {beam} --max-len-a 0 --max-len-b {length} --min-len {length}"
    args = options.parse_args_and_arch(options.get_generation_parser(), command.split())
    return built.task.build_generator([built.model], convert_namespace_to_omegaconf(args).generation)


def main() -> None:
    """Print the tables."""
    parser = timing.parser("decoding", __doc__ or "")
    parser.add_argument("--models", nargs="+", choices=("transformer", "lstm"), default=["transformer", "lstm"])
    parser.add_argument("--data", type=Path, help="folder of fairseq-preprocess (default: synthetic sentences)")
    parser.add_argument("--words", type=int, default=10000, help="synthetic vocabulary (10000)")
    parser.add_argument("--sentences", type=int, default=32, help="in a batch (32)")
    parser.add_argument("--length", type=int, default=20, help="steps of a search (20)")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="torch's name of the device (cpu)")
    parser.add_argument(
        "--maxima", action="store_true", help="softmax and KerBS with at most 4, 16 and 64 senses of a word"
    )
    parser.add_argument("--half", action="store_true", help="models in float16, as fairseq-generate --fp16 has them")
    args = parser.parse_args()
    heads = ["softmax", "KerBS", *models.MAXIMA] if args.maxima else list(models.HEADS)
    for model in args.models:
        with tempfile.TemporaryDirectory() as name:
            folder = args.data or models.synthetic_data(Path(name), args.words)
            running = {head: models.trainer(folder, model, head) for head in heads}
        words = len(running["softmax"].task.target_dictionary)
        torch.manual_seed(0)
        batch = models.synthetic_batch(words, args.sentences, args.length)
        if args.data:
            tokens = args.sentences * args.length
            (batch,) = itertools.islice(models.real_batches(running["softmax"], "test", tokens), 1)
        for built in running.values():
            built.model.to(args.device, torch.float16 if args.half else torch.float32)
        batch = utils.apply_to_sample(lambda x: x.to(args.device), batch)
        arms = {head: Search(built, args.beam, args.length, batch) for head, built in running.items()}
        times = timing.race(arms, args.rounds)
        title = f"{model}, beam {args.beam}, {batch['nsentences']} sentences, {args.length} steps, {words} words"
        timing.show(f"{title}: time", times, "softmax")
        speeds = {head: 1 / middle for head, (middle, _, _) in timing.ratios(times, "softmax").items()}
        listed = ", ".join(f"{head} {speed:.2f}" for head, speed in speeds.items())
        print(f"  tokens per second, softmax = 1: {listed}", flush=True)
        settings = {"model": model, "words": words, "beam": args.beam, "length": args.length, "device": args.device}
        settings["half"] = args.half
        settings["sentences"] = batch["nsentences"]
        timing.keep(args.results, "decoding", settings, {"seconds": times})


class Search:
    """A callable that translates one batch by beam search."""

    def __init__(self, built: Any, beam: int, length: int, batch: dict[str, Any]) -> None:
        built.model.eval()
        built.model.prepare_for_inference_(built.cfg)  # as fairseq-generate does
        self.built, self.batch, self.generator = built, batch, generator(built, beam, length)

    def __call__(self) -> None:
        """Run one search."""
        self.built.task.inference_step(self.generator, [self.built.model], self.batch)


if __name__ == "__main__":
    main()
