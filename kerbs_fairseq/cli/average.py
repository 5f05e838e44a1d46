"""``kerbs-average``: average checkpoints of one run into one checkpoint.

Weights are averaged. The map from senses to words cannot be: where it differs between the checkpoints, row j of one is
a sense of another word than row j of the other, and their mean belongs to neither. fairseq's own script averages the
map like a weight, without a warning.
"""

import re
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.modules.sense_table import map_damage
from kerbs_fairseq.runs import checkpoint as schema
from kerbs_fairseq.runs import files
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.errors import UserError, console

NAME = "kerbs-average"
MAP, STATISTICS = f".{schema.HEAD}{schema.MAP}", f".{schema.HEAD}{schema.STATISTICS}"
DROPPED = (schema.OPTIMIZER,)  # of one checkpoint, useless for the average


def order(path: Path) -> tuple[float, ...]:
    """Return a sort key by epoch and update: checkpoint_9_300.pt, checkpoint9.pt (epoch end), checkpoint_10_400.pt."""
    epoch, *update = (int(n) for n in re.findall(r"\d+", path.stem))
    return (epoch, *update) if update else (epoch, float("inf"))


def chosen(inputs: list[Path], last: Optional[int]) -> list[Path]:
    """Return the files to average: those given, or the ``last`` numbered checkpoints of a folder."""
    if last is None:
        folders = [path for path in inputs if path.is_dir()]
        if folders:
            raise UserError(f"{folders[0]} is a directory: say how many of its checkpoints, --last 5")
        return inputs
    if last < 1:
        raise UserError(f"--last {last}: at least 1")
    if len(inputs) != 1 or not inputs[0].is_dir():
        raise UserError("--last requires one folder of checkpoints")
    numbered = [path for path in inputs[0].glob("checkpoint*.pt") if re.fullmatch(r"checkpoint(_\d+_)?\d+", path.stem)]
    if len(numbered) < last:
        raise UserError(
            f"{inputs[0]} has {len(numbered)} numbered checkpoints, and --last asks for {last}: train without "
            "--no-epoch-checkpoints, or with --save-interval-updates"
        )
    return sorted(numbered, key=order)[-last:]


def difference(first: dict[str, Tensor], other: dict[str, Tensor]) -> Optional[str]:
    """Return why two models cannot be averaged, or None."""
    if first.keys() != other.keys():
        odd = sorted(first.keys() ^ other.keys())
        return f"they are different models: {odd[0]} is in only one of them"
    for name, value in first.items():
        if value.shape != other[name].shape:
            return (
                f"they are different models: {name} is {tuple(value.shape)} in one, "
                f"{tuple(other[name].shape)} in the other"
            )
        if value.is_floating_point() != other[name].is_floating_point():
            return f"they are different models: {name} is {value.dtype} in one, {other[name].dtype} in the other"
        if name.endswith(MAP) and not torch.equal(value, other[name]):
            moved = int((value != other[name]).sum())
            return (
                f"{moved} of {len(value)} senses moved to another word between them, and the mean of two words' "
                "vectors is not a vector of either. Average checkpoints from after the last move (from where "
                "--kerbs-reallocate-every 0 goes on, the map stays), or train with --store-ema, which follows the moves"
            )
        if not value.is_floating_point() and STATISTICS not in name and not torch.equal(value, other[name]):
            return f"they are different models: {name} differs"
    return None


def average(paths: list[Path], trust: bool = False) -> dict[str, Any]:
    """Return the last checkpoint of ``paths`` with the mean of all their weights, and without optimizer state."""
    sums: dict[str, Tensor] = {}
    first: dict[str, Tensor] = {}
    state: dict[str, Any] = {}
    for path in paths:
        checkpoint = schema.load(path, trust)
        state, model = checkpoint.state, checkpoint.model
        damaged = map_damage(checkpoint.head, schema.SENSES)
        if damaged:
            raise UserError(f"{path} cannot be averaged: {damaged}")
        first = first or {name: value.clone() for name, value in model.items()}
        problem = difference(first, model)
        if problem:
            raise UserError(f"{paths[0]} and {path} cannot be averaged: {problem}")
        for name, value in model.items():
            if value.is_floating_point() and STATISTICS not in name:
                if not bool(torch.isfinite(value).all()):
                    raise UserError(f"{path} cannot be averaged: {name} has NaN or infinities; its training went wrong")
                sums[name] = sums.get(name, 0) + value.double()
    for name, total in sums.items():
        state[schema.MODEL][name] = (total / len(paths)).to(state[schema.MODEL][name].dtype)
    for name in DROPPED:
        state.pop(name, None)
    return state


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    parser = Parser(
        prog=NAME,
        description="Average the weights of checkpoints of one run; refused where senses moved between them.",
        epilog="kerbs-average --last 5 checkpoints --output average.pt",
    )
    parser.add_argument("inputs", nargs="+", type=Path, help="checkpoints, or with --last one folder of them")
    parser.add_argument("--last", type=int, metavar="N", help="the last N numbered checkpoints of a folder")
    parser.add_argument("--output", "-o", type=Path, required=True, help="file for the average")
    parser.add_argument(
        "--trust", action="store_true", help="load all that the checkpoints hold, which can run code; see the README"
    )
    with console(NAME):
        args = parser.parse_args(argv)
        paths = chosen(args.inputs, args.last)
        files.destination(args.output, paths)  # checked before the work
        state = average(paths, args.trust)
        with files.replacing(args.output, paths) as beside, beside.open("wb") as file:
            torch.save(state, file)  # with a path it would not report what is wrong with the disk
        print(f"{args.output}: the average of {len(paths)} checkpoint{'s' * (len(paths) != 1)}:", *paths, sep="\n  ")


if __name__ == "__main__":
    main()
