"""``python -m benchmarks.inputs``: what the choices of --kerbs-input cost in training, relative to ``untied``.

An update of a whole model (forward, backward, Adam) on made-up sentences, for the Transformer of the paper's size and
the LSTM 512/256; the choices take turns within one run, and medians are compared. As all batches are of one shape, the
ratio of updates is that of epochs.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

import kerbs_fairseq  # noqa: F401  (mends fairseq and registers the twins)

CHOICES = ("untied", "usage", "posterior")
MODELS = {
    "transformer": "--arch kerbs_transformer --encoder-layers 5 --decoder-layers 5 --encoder-embed-dim 288 "
    "--decoder-embed-dim 288 --encoder-ffn-embed-dim 507 --decoder-ffn-embed-dim 507 --encoder-attention-heads 2 "
    "--decoder-attention-heads 2 --dropout 0.1",
    "lstm": "--arch kerbs_lstm --encoder-bidirectional --encoder-embed-dim 256 --decoder-embed-dim 256 "
    "--decoder-out-embed-dim 256 --encoder-hidden-size 512 --decoder-hidden-size 512",
    "gru_lm": "--arch kerbs_gru_lm --task language_modeling --decoder-embed-dim 256 --decoder-hidden-size 512 "
    "--decoder-out-embed-dim 256",
}


def data(folder: Path, words: int) -> None:
    """A folder with dictionaries and nothing else."""
    dictionary = Dictionary()
    for i in range(words - dictionary.nspecial):
        dictionary.add_symbol(f"w{i}", n=words - i)
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt"):
        dictionary.save(str(folder / name))


def trainer(folder: Path, model: str, choice: str) -> Trainer:
    """A model and what updates it."""
    command = f"{folder} {MODELS[model]} --criterion kerbs_cross_entropy --optimizer adam --kerbs-input {choice} --cpu"
    command += "" if model == "gru_lm" else " --source-lang de --target-lang en"
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command.split()))
    torch.manual_seed(0)
    task = tasks.setup_task(cfg.task)
    built = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    built.begin_epoch(1)
    return built


def batch(words: int, sentences: int, length: int, language_model: bool) -> dict[str, Any]:
    """Sentences of one length."""
    source, before, target = (torch.randint(4, words, (sentences, length)) for _ in range(3))
    lengths = torch.full((sentences,), length)
    net_input = {"src_tokens": source, "src_lengths": lengths}
    if not language_model:
        net_input["prev_output_tokens"] = before
    return {"id": torch.arange(sentences), "nsentences": sentences, "ntokens": sentences * length,
            "net_input": net_input, "target": target}  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inputs", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--words", type=int, default=10000)
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--length", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{args.sentences} sentences of {args.length} words, {args.words} words, 3 senses a word, median of")
    print(f"{args.rounds}, torch {torch.__version__}, {torch.get_num_threads()} threads; time of an update, untied = 1")
    print(f"{'':<13}" + "".join(f"{choice:>22}" for choice in CHOICES), flush=True)
    for model in args.models:
        times: dict[str, list[float]] = {choice: [] for choice in CHOICES}
        with tempfile.TemporaryDirectory() as name:
            data(Path(name), args.words)
            running = {choice: trainer(Path(name), model, choice) for choice in CHOICES}
            for number in range(args.rounds + 1):
                torch.manual_seed(number)
                sample = batch(args.words, args.sentences, args.length, model == "gru_lm")
                for choice, built in running.items():
                    began = time.perf_counter()
                    built.train_step([sample])
                    if number:  # the first round warms up
                        times[choice].append(time.perf_counter() - began)
        unit = statistics.median(times["untied"])
        cells = [[f(times[choice]) / unit for f in (statistics.median, min, max)] for choice in CHOICES]
        print(f"{model:<13}" + "".join(f"{m:>9.2f} ({a:.2f}-{b:.2f})" for m, a, b in cells), flush=True)


if __name__ == "__main__":
    main()
