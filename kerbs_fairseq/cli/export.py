"""``kerbs-export``: write a translation model with its beam search as one TorchScript file.

The file needs torch, but neither fairseq nor this package. The output layer's tables are prepared, and pruned with
``--prune``. Stock models can be exported too, for comparison.
"""

import argparse
import io
import json
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor
from torch.jit.frontend import FrontendError

from kerbs_fairseq.runs import checkpoint as schema
from kerbs_fairseq.runs import files
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console, reason

NAME = "kerbs-export"
SOURCE, TARGET, SETTINGS = "source.txt", "target.txt", "settings.json"  # files inside the archive
SENTENCES = 32  # in a batch of --check


class Exported(NamedTuple):
    """The compiled generator, fairseq's generator for the same model, the model, and the extra files of the archive."""

    scripted: Any
    eager: Any
    built: Any
    extra: dict[str, str]


def export(checkpoint: schema.Checkpoint, args: argparse.Namespace) -> Exported:
    """Compile the model of a checkpoint with its beam search."""
    from fairseq.sequence_generator import SequenceGenerator

    from kerbs_fairseq.plugin import pretrained, saved, scripting

    name = saved.architecture(checkpoint)
    built = saved.build(checkpoint, name, args.data, {})
    try:
        built.model.load_state_dict(dict(checkpoint.model), model_cfg=built.cfg.model)
    except (RuntimeError, KeyError) as error:  # raised by stock models; twins report it themselves
        raise UserError(f"{checkpoint.path} does not fit --data {args.data}: {pretrained.misfit(error)}") from None
    if not hasattr(built.model, "encoder"):
        raise UserError(f"{checkpoint.path} is a language model: kerbs-export is for models that translate")
    head: Any = getattr(built.model.decoder, "head", None)
    if args.prune:
        if checkpoint.layer != "KerBS" or not bool(head.statistics.usage.any()):
            raise UserError("--prune has no effect: the model has no statistics of senses; leave it out")
        head.prune = args.prune
    model = built.model.half() if args.half else built.model.float()
    settings = {"beam_size": args.beam, "max_len_a": args.max_len_a, "max_len_b": args.max_len_b}
    settings |= {"min_len": args.min_len, "len_penalty": args.lenpen}
    eager, prepared = (
        SequenceGenerator([one], built.task.target_dictionary, **settings)
        for one in (model.eval(), scripting.prepared_model(model))
    )
    try:
        scripted = torch.jit.script(prepared)
    except (RuntimeError, FrontendError) as error:
        raise UserError(
            f"fairseq's own {name.removeprefix('kerbs_')} cannot be compiled together with its beam search by "
            f"TorchScript ({type(error).__name__}: {reason(error)[:100]}); Transformers can"
        ) from None
    extra = {SOURCE: words(built.task.source_dictionary), TARGET: words(built.task.target_dictionary)}
    pad, eos = built.task.source_dictionary.pad(), built.task.source_dictionary.eos()
    extra[SETTINGS] = json.dumps({**settings, "pad": pad, "eos": eos, "half": args.half, "prune": args.prune})
    return Exported(scripted, eager, built, extra)


def words(dictionary: Any) -> str:
    """Return the symbols of a dictionary, one per line, in the order of their ids."""
    return "\n".join(dictionary.symbols)


def inputs(built: Any, split: str) -> Iterator[dict[str, dict[str, Tensor]]]:
    """Yield the batches of a split as the generator takes them."""
    try:
        built.task.load_dataset(split)
    except FileNotFoundError:
        raise UserError(f"--data has no split {split}; --check names one of fairseq-preprocess") from None
    data = built.task.dataset(split)
    order = data.ordered_indices()
    for start in range(0, len(order), SENTENCES):
        sample = data.collater([data[int(i)] for i in order[start : start + SENTENCES]])
        yield {"net_input": {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}}


@torch.no_grad()
def compared(result: Exported, split: str) -> str:
    """Return a line: how many sentences of a split have the same beams in both generators, and the time of each."""
    same = total = 0
    seconds = [0.0, 0.0]
    for number, sample in enumerate(inputs(result.built, split)):
        outputs = []
        for which, generator in enumerate((result.eager, result.scripted)):
            if number == 0:  # warm up: compile and allocate
                for _ in range(2):
                    generator(sample)
            began = time.perf_counter()
            outputs.append(generator(sample))
            seconds[which] += time.perf_counter() - began
        for one, other in zip(*outputs):
            total += 1
            same += [beam["tokens"].tolist() for beam in one] == [beam["tokens"].tolist() for beam in other]
    times = f"{seconds[1]:.2f} s, fairseq's {seconds[0]:.2f} s"
    return f"{same} of {total} sentences of {split} have the same beams as fairseq's generator finds; {times}"


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = Parser(
        prog=NAME,
        description="Write a translation model with its beam search as one TorchScript file.",
        epilog="kerbs-export checkpoint_best.pt --data data-bin --beam 5 -o model.ts",
    )
    result.add_argument("checkpoint", type=Path, help="checkpoint of a KerBS model, or of a stock one")
    result.add_argument("--output", "-o", type=Path, required=True, help="file to write")
    result.add_argument("--data", type=Path, required=True, help="folder of fairseq-preprocess, for the dictionaries")
    result.add_argument("--beam", type=int, default=5, help="beam size (default: 5)")
    result.add_argument("--lenpen", type=float, default=1.0, help="length penalty (default: 1)")
    result.add_argument("--max-len-a", type=float, default=0.0, help="longest output: a · source length + b")
    result.add_argument("--max-len-b", type=int, default=200, help="as --max-len-a (default: 200)")
    result.add_argument("--min-len", type=int, default=1, help="shortest output (default: 1)")
    result.add_argument("--prune", type=float, default=0.0, metavar="SHARE", help="as fairseq-generate --kerbs-prune")
    result.add_argument("--half", action="store_true", help="weights in half precision")
    result.add_argument("--check", metavar="SPLIT", help="translate a split with the result and with fairseq, compare")
    result.add_argument("--user-dir", type=Path, help="code that the model or its task needs")
    result.add_argument("--trust", action="store_true", help="load all that the checkpoint holds, which can run code")
    return result


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    with console(NAME), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and fairseq about each other
        args = parser().parse_args(argv)
        from kerbs_fairseq.plugin import saved

        if args.beam < 1:
            raise UserError(f"--beam {args.beam}: at least 1")
        if not 0 <= args.prune < 1:
            raise UserError(f"--prune {args.prune:g}: a share of at least 0 and below 1")
        files.destination(args.output, [args.checkpoint])  # checked before the work
        checkpoint = schema.load(args.checkpoint, args.trust)
        saved.import_user_dir(args.user_dir)
        logging.getLogger("fairseq").setLevel(logging.WARNING)
        with saved.damage_is_told(checkpoint, args.data):
            result = export(checkpoint, args)
            line = compared(result, args.check) if args.check else ""
        with files.replacing(args.output, [args.checkpoint]) as beside:
            save(result, beside)
        print(f"{args.output}: {args.output.stat().st_size / 2**20:.1f} MB, beam {args.beam}")
        if line:
            print(line)


def save(result: Exported, path: Path) -> None:
    """Write the archive. It is made in memory, because torch aborts the process if it cannot write to a disk."""
    buffer = io.BytesIO()
    torch.jit.save(result.scripted, buffer, _extra_files=result.extra)
    path.write_bytes(buffer.getbuffer())


if __name__ == "__main__":
    main()
