"""Models of the paper's sizes with each head, built as fairseq-train builds them, and batches for them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

import kerbs_fairseq  # noqa: F401  (patches fairseq and registers the twins)

MODELS = {
    "transformer": "--encoder-layers 5 --decoder-layers 5 --encoder-embed-dim 288 --decoder-embed-dim 288 "
    "--encoder-ffn-embed-dim 507 --decoder-ffn-embed-dim 507 --encoder-attention-heads 2 --decoder-attention-heads 2 "
    "--dropout 0.1",
    "lstm": "--encoder-bidirectional --encoder-embed-dim 256 --decoder-embed-dim 256 --decoder-out-embed-dim 256 "
    "--encoder-hidden-size 512 --decoder-hidden-size 512",
    "gru_lm": "--task language_modeling --decoder-embed-dim 256 --decoder-hidden-size 512 --decoder-out-embed-dim 256",
}
HEADS = {
    "softmax": ("", "--criterion cross_entropy"),
    "KerBS": ("kerbs_", "--criterion kerbs_cross_entropy"),
    "KerBS 1.125": ("kerbs_", "--criterion kerbs_cross_entropy --kerbs-senses 1.125 --kerbs-max-senses 32"),
    "KerBS 3": ("kerbs_", "--criterion kerbs_cross_entropy --kerbs-senses 3"),
    "MoS": ("mos_", "--criterion cross_entropy"),
}
MAXIMA = {  # as many senses in all
    f"KerBS, at most {most}": ("kerbs_", f"--criterion kerbs_cross_entropy --kerbs-max-senses {most}")
    for most in (4, 64)
}


def synthetic_data(folder: Path, words: int) -> Path:
    """Write dictionaries, and nothing else, to ``folder``; return it."""
    dictionary = Dictionary()
    for i in range(words - dictionary.nspecial):
        dictionary.add_symbol(f"w{i}", n=round(1e7 / (i + 1)))  # Zipf's law, as in a text
    for name in ("dict.de.txt", "dict.en.txt", "dict.txt"):
        dictionary.save(str(folder / name))
    return folder


def trainer(folder: Path, model: str, head: str, more: str = "--cpu") -> Trainer:
    """Build a model and its trainer; ``folder`` has dictionaries, or a whole preprocessed corpus."""
    prefix, criterion = {**HEADS, **MAXIMA}[head]
    command = f"{folder} --arch {prefix}{model} {MODELS[model]} {criterion} --optimizer adam --lr 5e-4 {more}"
    if model != "gru_lm" and (folder / "dict.de.txt").exists():
        command += " --source-lang de --target-lang en"
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), command.split()))
    torch.manual_seed(0)
    task = tasks.setup_task(cfg.task)
    built = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    built.begin_epoch(1)
    return built


def synthetic_batch(words: int, sentences: int, length: int, language_model: bool = False) -> dict[str, Any]:
    """Return a batch of random sentences of one length."""
    source, before, target = (torch.randint(4, words, (sentences, length)) for _ in range(3))
    lengths = torch.full((sentences,), length)
    net_input = {"src_tokens": source, "src_lengths": lengths}
    if not language_model:
        net_input["prev_output_tokens"] = before
    return {"id": torch.arange(sentences), "nsentences": sentences, "ntokens": sentences * length,
            "net_input": net_input, "target": target}  # fmt: skip


def real_batches(built: Trainer, split: str, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield batches of a corpus, in the order of an epoch."""
    built.task.load_dataset(split)
    dataset = built.task.dataset(split)
    yield from built.task.get_batch_iterator(dataset, max_tokens=tokens, seed=1).next_epoch_itr(shuffle=True)
