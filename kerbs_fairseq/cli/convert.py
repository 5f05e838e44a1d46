"""``kerbs-convert``: convert a checkpoint with a softmax to one with KerBS, or back.

To KerBS: as ``fairseq-train --finetune-from-model`` does before its first update. To a softmax: exact if all senses of
a word have the same vector and θ is 0; otherwise only with ``--approximate``, and both perplexities are reported.
"""

import argparse
import dataclasses
import logging
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.runs import checkpoint as schema
from kerbs_fairseq.runs import files
from kerbs_fairseq.runs.arguments import Parser
from kerbs_fairseq.runs.checkpoint import Checkpoint
from kerbs_fairseq.runs.errors import UserError, console

NAME = "kerbs-convert"
OPTIONS = ("senses", "min_senses", "max_senses", "init", "power", "min_count", "bias_rate", "kernel", "theta_bound",
           "theta_rate", "input", "seed", "decay", "start_noise", "start_split")  # fmt: skip
SHARED = ("share_decoder_input_output_embed", "share_all_embeddings")
DECODER = "decoder."  # in the names of a state dict
NO_BIAS = 1e-5  # biases that differ by less from each other count as equal


def to_kerbs(checkpoint: Checkpoint, data: Path, changes: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a checkpoint of ``kerbs_X`` for one of X, and a line about it."""
    from kerbs_fairseq.plugin import pretrained, saved

    if checkpoint.layer != "softmax":
        raise UserError(
            f"{checkpoint.path} has a {checkpoint.layer} output layer already: give a checkpoint of a softmax"
        )
    name = saved.architecture(checkpoint)
    built = saved.build(checkpoint, f"kerbs_{name}", data, {"kerbs_preset": None, "kerbs_seed": 1, **changes})
    measured = saved.load_validation(built)
    with pretrained.at_work(SimpleNamespace(task=built.task, cfg=built.cfg), reset_optimizer=True):
        built.model.load_state_dict(dict(checkpoint.model), model_cfg=built.cfg.model)
    table = built.model.decoder.head.senses
    line = f"kerbs_{name}, {len(table.vectors)} senses of {table.n_words} words"
    if measured:
        line += f", validation perplexity {saved.perplexity(built):.3f}"
    return saved.saved_state(checkpoint, built), line


def to_softmax(checkpoint: Checkpoint, data: Path, approximate: bool) -> tuple[dict[str, Any], str]:
    """Return a checkpoint of X for one of ``kerbs_X``, and a line about it."""
    from kerbs_fairseq.functional import from_softmax
    from kerbs_fairseq.plugin import saved
    from kerbs_fairseq.plugin.decoders import projection_of

    if checkpoint.layer != "KerBS":
        raise UserError(f"{checkpoint.path} has a {checkpoint.layer} output layer: --to-softmax takes one with KerBS")
    name = saved.architecture(checkpoint)
    kerbs = saved.build(checkpoint, name, data, {})
    kerbs.model.load_state_dict(dict(checkpoint.model), model_cfg=kerbs.cfg.model)
    kerbs.model.eval()
    decoder = kerbs.model.decoder
    table, n_words = decoder.head.senses, decoder.head.n_words
    with torch.no_grad():
        senses = table.senses()
    bias = torch.zeros_like(senses.vectors[:, 0]) if senses.bias is None else senses.bias
    rows = from_softmax.Weights(senses.vectors.detach(), bias.detach())
    words = table.sense_to_word
    usage = decoder.head.statistics.usage
    softmax = from_softmax.softmax_of(rows, words, n_words, usage)
    problem = from_softmax.inexact(rows.vectors, senses.theta, words, n_words)
    inputs = input_table(decoder, n_words)
    shared = {option: False for option in SHARED if not torch.equal(inputs, softmax.vectors)}
    stock = saved.build(checkpoint, name.removeprefix("kerbs_"), data, without_kerbs(kerbs.cfg.model, shared))
    projection, _, stock_bias = projection_of(stock.model.decoder)
    if stock_bias is None and float(softmax.bias.max() - softmax.bias.min()) > NO_BIAS:
        problem = problem or "words have different biases, and the output layer of the stock model has none"
    if decoder.input_choice == "posterior" and bool(from_softmax.parted(rows.vectors, words, n_words).any()):
        problem = problem or "the decoder's input depends on the senses that were meant (--kerbs-input posterior)"
    if problem and not approximate:
        raise UserError(
            f"{checkpoint.path} cannot be converted exactly: {problem}; --approximate converts it with a loss"
        )
    measured = saved.load_validation(kerbs)
    if problem and not measured:
        raise UserError(f"--approximate says what is lost on {kerbs.split}, and --data {data} has none")
    if stock_bias is None and problem:
        softmax = folded(softmax, kerbs)
    state = {key: x for key, x in kerbs.model.state_dict().items() if not key.startswith(DECODER + schema.HEAD)}
    if decoder.input_choice != "untied":
        state[DECODER + schema.EMBEDDING] = inputs
        del state[DECODER + schema.CHOICE]
    if projection is not None:
        state[f"{DECODER}{projection}.weight"] = softmax.vectors
        if stock_bias is not None:
            state[f"{DECODER}{projection}.bias"] = softmax.bias
    stock.model.load_state_dict(state, model_cfg=stock.cfg.model)
    line = f"{name.removeprefix('kerbs_')}, {'exact' if problem is None else f'an approximation ({problem})'}"
    if measured:
        saved.load_validation(stock)
        before, after = saved.perplexity(kerbs), saved.perplexity(stock)
        line += f", validation perplexity {before:.3f} with KerBS, {after:.3f} with the softmax"
    return saved.saved_state(checkpoint, stock), line


@torch.no_grad()
def input_table(decoder: Any, n_words: int) -> Tensor:
    """Return the decoder's input vectors (V, d), from its own table or its senses; empty if they come from neither."""
    if isinstance(decoder.embed_tokens, torch.nn.Embedding):
        return decoder.embed_tokens.weight.detach()
    if decoder.input_choice == "untied":
        return torch.empty(0)
    table: Tensor = decoder.embed_tokens(torch.arange(n_words))
    return table


def without_kerbs(model: Any, changes: dict[str, Any]) -> dict[str, Any]:
    """Return those of ``changes`` whose options the model has."""
    return {name: value for name, value in changes.items() if getattr(model, name, None) is not None}


def folded(softmax: Any, kerbs: Any) -> Any:
    """Fold the biases of a softmax into its vectors, exactly at the mean of the features on the validation set."""
    from kerbs_fairseq.plugin.starting import VALIDATION_TOKENS, Corpus

    features, _ = Corpus(kerbs.task, kerbs.model, kerbs.split, VALIDATION_TOKENS).contexts()
    mean = features.float().mean(0)
    bias = softmax.bias - softmax.bias.mean()
    return softmax._replace(vectors=softmax.vectors + bias.unsqueeze(1) * mean / mean.square().sum(), bias=bias * 0)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser; the options of ``kerbs_X`` are those of fairseq-train."""
    from fairseq.dataclass import FairseqDataclass
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    from kerbs_fairseq.plugin.options import KerbsOptions

    result = Parser(
        prog=NAME,
        description="Turn a checkpoint of a softmax into one of KerBS that predicts the same, or back.",
        epilog="kerbs-convert softmax.pt kerbs.pt --data data-bin",
    )
    result.add_argument("input", type=Path, help="checkpoint to convert; it is not changed")
    result.add_argument("output", type=Path, help="file for the result")
    result.add_argument(
        "--data", type=Path, required=True, help="folder of fairseq-preprocess, for dictionary and counts"
    )
    result.add_argument("--to-softmax", action="store_true", help="from KerBS to a softmax")
    result.add_argument(
        "--approximate", action="store_true", help="with --to-softmax: also where that changes the model"
    )
    result.add_argument("--user-dir", type=Path, help="code that the model or its task needs")
    result.add_argument("--trust", action="store_true", help="load all that the checkpoint holds, which can run code")
    result.add_argument("--senses", dest="kerbs_senses", type=float, help="the same as --kerbs-senses")
    chosen = [field for field in dataclasses.fields(KerbsOptions) if field.name.removeprefix("kerbs_") in OPTIONS]
    some = dataclasses.make_dataclass("Some", [(f.name, f.type, f) for f in chosen], bases=(FairseqDataclass,))
    gen_parser_from_dataclass(result, some(), delete_default=True)
    return result


def main(argv: Optional[list[str]] = None) -> None:
    """Run the command."""
    with console(NAME), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch and fairseq about each other
        logging.getLogger("fairseq").setLevel(logging.WARNING)
        args = parser().parse_args(argv)
        from kerbs_fairseq.plugin import saved

        changes = {name: value for name, value in vars(args).items() if name.startswith("kerbs_") and value is not None}
        if args.to_softmax and changes:
            raise UserError(f"--{next(iter(changes)).replace('_', '-')} has no effect with --to-softmax: leave it out")
        if args.approximate and not args.to_softmax:
            raise UserError("--approximate has no effect without --to-softmax: leave it out")
        files.destination(args.output, [args.input])  # checked before the work
        checkpoint = schema.load(args.input, args.trust)
        saved.import_user_dir(args.user_dir)
        with saved.damage_is_told(checkpoint, args.data):
            if args.to_softmax:
                state, line = to_softmax(checkpoint, args.data, args.approximate)
            else:
                state, line = to_kerbs(checkpoint, args.data, changes)
        with files.replacing(args.output, [args.input]) as beside, beside.open("wb") as file:
            torch.save(state, file)  # with a path it would not report what is wrong with the disk
        print(f"{args.output}: {line}")


if __name__ == "__main__":
    main()
