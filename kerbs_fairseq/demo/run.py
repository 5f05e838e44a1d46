"""``kerbs-demo``: write the demo corpus, train small models on it with fairseq's own commands, and print a table.

Every command is printed as it is run, so that it can be repeated by hand; its output goes to a log file.
"""

import argparse
import json
import os
import shlex
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Optional

from kerbs_fairseq import __version__, activation
from kerbs_fairseq.demo.truth import Comparison, kinds_of_words, learned_senses, means_by_kind, true_senses
from kerbs_fairseq.demo.write import write_corpus
from kerbs_fairseq.inspection.command import quiet
from kerbs_fairseq.runs import checkpoint, files, logs, outputs
from kerbs_fairseq.runs import process as commands
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console

NAME = "kerbs-demo"
BEST = "checkpoint_best.pt"
MARK = "kerbs-demo.json"  # marks a folder that this command wrote, and may replace


@dataclass(frozen=True)
class Model:
    """A fairseq architecture with its options and number of epochs."""

    name: str
    epochs: int
    architecture: str
    options: str


@dataclass(frozen=True)
class Head:
    """An output layer: prefix of the architecture, criterion and options."""

    name: str
    prefix: str
    criterion: str
    options: str = ""
    only: str = ""  # the only model to train it with; "": all


# Senses may move from early on: the demo is a few hundred updates long.
SENSES = "--kerbs-reallocate-after 20 --kerbs-reallocate-every 10 --kerbs-reallocate-until 400 --kerbs-decay 0.05"
# Few senses to spare, and a move whenever one is idle: the allocation can be compared with the truth.
MOVES = (
    "--kerbs-init random --kerbs-max-senses 4 --kerbs-init-vectors random --kerbs-strategy idle --kerbs-bias none "
    "--kerbs-reallocate-after 20 --kerbs-reallocate-every 1 --kerbs-reallocate-until 400 --kerbs-decay 0.05"
)
HEADS = (
    Head("softmax", "", "cross_entropy"),
    Head("mos", "mos_", "cross_entropy"),
    Head("kerbs", "kerbs_", "kerbs_cross_entropy", SENSES),
    Head("kerbs-1.5", "kerbs_", "kerbs_cross_entropy", MOVES, only="transformer"),
)

OPTIMISATION = "--optimizer adam --lr-scheduler inverse_sqrt --warmup-updates 100 --dropout 0.1"

MODELS = (
    Model(
        "transformer",
        12,
        "transformer_iwslt_de_en",
        "--encoder-layers 2 --decoder-layers 2 --encoder-embed-dim 96 --decoder-embed-dim 96 "
        "--encoder-ffn-embed-dim 192 --decoder-ffn-embed-dim 192 --lr 2e-3 --max-tokens 1000",
    ),
    Model(
        "lstm",
        10,
        "lstm",
        "--encoder-bidirectional --encoder-embed-dim 96 --decoder-embed-dim 96 --decoder-out-embed-dim 96 "
        "--encoder-hidden-size 128 --decoder-hidden-size 128 --lr 5e-3 --clip-norm 1 --max-tokens 600",
    ),
)


@dataclass
class Result:
    """A row of the table."""

    model: str
    head: str
    parameters: int = 0
    valid_ppl: float = float("inf")
    bleu: float = 0.0
    seconds: float = 0.0
    signature: str = ""
    # rank correlation of learned and true numbers of senses, over all words and without grammar words
    truth_correlation: Optional[float] = None
    content_correlation: Optional[float] = None

    @property
    def name(self) -> str:
        """The name of the model in the output."""
        return f"{self.model} {self.head}"


class TrainingWatch:
    """Reads the log of fairseq-train line by line: stores the best validation perplexity and prints progress."""

    def __init__(self, result: Result, epochs: int) -> None:
        self.result, self.epochs, self.start = result, epochs, time.monotonic()

    def __call__(self, line: str) -> None:
        """Process one line of the log."""
        record = logs.record_of(line)
        if record is None or record.kind != logs.VALID:
            return
        ppl, epoch = record.values["ppl"], int(record.values["epoch"])
        self.result.valid_ppl = min(self.result.valid_ppl, ppl)
        passed = time.monotonic() - self.start
        left = passed / epoch * (self.epochs - epoch)
        say(
            f"  {self.result.name:<22}epoch {epoch:2}/{self.epochs}  valid ppl {ppl:8.2f}  "
            f"{passed:4.0f} s, {left:.0f} s to go"
        )


def say(text: str, end: str = "\n") -> None:
    """Print without buffering, also into a pipe."""
    print(text, end=end, flush=True)


def show(command: list[str]) -> list[str]:
    """Print a command as one would type it, and return it."""
    say(f"$ {shlex.join(command)}")
    return command


def preprocess(folder: Path) -> None:
    """Run fairseq-preprocess on the corpus."""
    text = folder / "corpus" / "parallel"
    command = ["fairseq-preprocess", "--source-lang", "src", "--target-lang", "tgt", "--workers", "2"]
    for split in ("train", "valid", "test"):
        command += [f"--{split}pref", str(text / split)]
    commands.run(show([*command, "--destdir", str(folder / "data")]), folder / "preprocess.log")


def train(
    folder: Path, save: Path, model: Model, head: Head, epochs: int, seed: int, threads: Optional[int] = None
) -> Result:
    """Train one model into ``save``; return its parameters and best validation perplexity."""
    result = Result(model.name, head.name)
    command = ["fairseq-train", str(folder / "data"), "--user-dir", commands.user_dir()]
    command += ["--arch", head.prefix + model.architecture, "--criterion", head.criterion, *model.options.split()]
    command += [
        *head.options.split(),
        *OPTIMISATION.split(),
        "--max-epoch",
        str(epochs),
        "--seed",
        str(seed),
        "--save-dir",
        str(save),
    ]
    command += ["--no-epoch-checkpoints", "--log-format", "json"]
    if head.prefix == "kerbs_":
        command += ["--kerbs-move-log", str(save / "moves.tsv")]
    commands.run(show(command), save / logs.LOG, TrainingWatch(result, epochs), threads)
    result.parameters = checkpoint.parameters(checkpoint.load(save / BEST).model)
    return result


def translate(folder: Path, save: Path) -> tuple[list[str], list[str]]:
    """Translate the test set with the best checkpoint in ``save``; return (hypotheses, references)."""
    command = ["fairseq-generate", str(folder / "data"), "--user-dir", commands.user_dir(), "--gen-subset", "test"]
    command += ["--beam", "5", "--path", str(save / BEST), "--batch-size", "100", "--no-progress-bar"]
    commands.run(show([*command, "--results-path", str(save)]), save / "generate.log")
    output = save / "generate-test.txt"
    return outputs.hypotheses(output), outputs.references(output)


def score(result: Result, hypotheses: list[str], references: list[str]) -> None:
    """Store BLEU by sacrebleu in ``result``, with its signature."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="none", force=True)  # the text of the demo is tokenised
    result.bleu = metric.corpus_score(hypotheses, [references]).score
    result.signature = str(metric.get_signature())


def table(results: list[Result]) -> str:
    """Format the results as a text table."""
    rows = [("model", "head", "parameters", "valid ppl", "BLEU", "seconds")]
    for r in results:
        rows.append((r.model, r.head, f"{r.parameters:,}", f"{r.valid_ppl:.2f}", f"{r.bleu:.1f}", f"{r.seconds:.0f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(f"{c:<{w}}" if i < 2 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(r, widths))) for r in rows]
    rule = "-" * len(lines[0])
    return "\n".join([lines[0], rule, *lines[1:]])


def cell(folder: Path, model: Model, head: Head, epochs: Optional[int], seed: int, threads: Optional[int]) -> Result:
    """Train, translate and score one model; return its row of the table."""
    began = time.monotonic()
    save = folder / f"{model.name}-{head.name}"
    result = train(folder, save, model, head, epochs or model.epochs, seed, threads)
    score(result, *translate(folder, save))
    scores = {"BLEU": result.bleu, "BLEU signature": result.signature}
    files.write(save / outputs.SCORES, json.dumps(scores) + "\n")
    result.seconds = time.monotonic() - began
    say(f"  {result.name:<22}BLEU {result.bleu:.1f}")
    return result


def compare_with_truth(folder: Path, results: list[Result]) -> None:
    """Print for each KerBS model how its numbers of senses compare with the true ones."""
    truth = folder / "corpus" / "truth.tsv"
    for result in results:
        if result.head.startswith("kerbs"):
            checkpoint = folder / f"{result.model}-{result.head}" / BEST
            learned = learned_senses(checkpoint, folder / "data" / "dict.tgt.txt")
            true, kinds = true_senses(truth), kinds_of_words(truth)
            comparison = Comparison.of(true, learned)
            content = Comparison.of({word: n for word, n in true.items() if kinds[word] != "grammar"}, learned)
            result.truth_correlation, result.content_correlation = comparison.correlation, content.correlation
            say(f"\n{result.name}: learned number of senses of words, by their true number")
            say(f"{comparison.table()}\nrank correlation {comparison.correlation:.2f}", end="")
            say(f", without grammar words {content.correlation:.2f}")
            means = means_by_kind(learned, kinds)
            say(f"mean by kind of word: {', '.join(f'{kind} {mean:.2f}' for kind, mean in means.items())}")


def report(folder: Path, results: list[Result]) -> Optional[Path]:
    """Print the accuracy of the senses of a KerBS model, ``kerbs-1.5`` if it was trained, and write its report.

    Returns the path of the report's page; None if there is no KerBS model.
    """
    from kerbs_fairseq.demo.homonyms import homonyms  # loads fairseq and all its models
    from kerbs_fairseq.demo.homonyms import table as homonym_table

    kerbs = [result for result in results if result.head.startswith("kerbs")]
    if not kerbs:
        return None
    main = next((result for result in kerbs if result.head == "kerbs-1.5"), kerbs[0])
    say(f"\n4. What {main.name} has learned, beside the others")
    others = [result for result in results if result.model == main.model and result is not main]
    paths = [folder / f"{r.model}-{r.head}" / BEST for r in (main, *others)]
    with quiet():
        words = homonyms(paths[0], folder / "data", folder / "corpus")
    command = ["kerbs-report", *map(str, paths), "--data", str(folder / "data"), "--output", str(folder / "report")]
    for one in words[:6]:
        command += ["--word", one.word]
    commands.run(show(command), folder / "report.log", threads=1)
    say(f"\n{main.name}: the likely sense against the true one, in sentences that it was not trained on")
    say(homonym_table(words))
    say("right: if each sense of the model stands for the true one it goes with most; by chance: if assigned at random")
    return folder / "report" / "index.html"


def demo(folder: Path, cells: list[tuple[Model, Head]], epochs: Optional[int], seed: int, jobs: int) -> None:
    """Run the whole demo in ``folder``."""
    start = time.monotonic()
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    files.write(folder / MARK, json.dumps({"version": __version__, "seed": seed}) + "\n")
    say(f"1. A corpus with known senses: {folder / 'corpus'}")
    show(["kerbs-demo-corpus", str(folder / "corpus"), "--seed", str(seed)])
    write_corpus(folder / "corpus", seed)
    say("\n2. Binary files for fairseq")
    preprocess(folder)
    jobs = min(jobs, len(cells))
    say(f"\n3. Train each model, translate the test set with beam 5, score; {jobs} at a time")
    threads = 1 if jobs > 1 else None  # small models are faster in parallel than each on all cores
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(cell, folder, model, head, epochs, seed, threads) for model, head in cells]
        try:
            results = [future.result() for future in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    say(f"\n{table(results)}")
    compare_with_truth(folder, results)
    files.write(folder / "results.json", json.dumps([asdict(r) for r in results], indent=2) + "\n")
    page = report(folder, results)
    say("\nppl: 2^loss per target word, lower is better, best epoch. seconds: start-up, training and translation.")
    say(f"BLEU signature: {results[0].signature}")
    say(f"Files: {folder} (corpus/truth.tsv lists the senses; results.json; a folder with logs for each model)")
    if page is not None:
        say(f"Report: {page} (open it in a browser)")
    say(f"Done in {time.monotonic() - start:.0f} s.")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    names = [model.name for model in MODELS]
    result = Parser(
        prog="kerbs-demo",
        description="Train small translation models on a synthetic corpus with known senses and print one table.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    result.add_argument(
        "--out", type=Path, default=Path("demo-out"), help="folder for all files; an earlier demo is replaced"
    )
    heads = [head.name for head in HEADS]
    result.add_argument("--models", nargs="+", choices=names, default=names, help="models to train")
    result.add_argument("--heads", nargs="+", choices=heads, default=heads, help="output layers to train them with")
    result.add_argument("--epochs", type=int, help="number of epochs of every model, instead of its own")
    result.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="models trained side by side")
    result.add_argument("--seed", type=int, default=1, help="for the corpus and the training")
    return result


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    with console(NAME):
        args = parser().parse_args(argv)
        if args.epochs is not None and args.epochs < 1:
            raise UserError("--epochs must be at least 1")
        if args.jobs < 1:
            raise UserError("--jobs must be at least 1")
        if not 0 <= args.seed < 2**32:
            raise UserError(f"--seed {args.seed}: a whole number from 0 to {2**32 - 1}")
        fault = activation.activate()
        if fault is not None:
            raise UserError(fault)
        if args.out.exists() and not (args.out / MARK).is_file():
            raise UserError(f"{args.out} exists and was not written by this command: choose another --out")
        heads = [head for head in HEADS if head.name in args.heads]
        cells = [(m, h) for m in MODELS if m.name in args.models for h in heads if h.only in ("", m.name)]
        if not cells:
            raise UserError(f"--heads {' '.join(args.heads)} requires --models {heads[0].only}")
        try:
            demo(args.out, cells, args.epochs, args.seed, args.jobs)
        except OSError as error:
            files.cannot_write(args.out, error)


if __name__ == "__main__":
    main()
