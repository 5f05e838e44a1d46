"""What trainings leave behind, written by hand: a dictionary, a checkpoint, a log, a table of moves."""

from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary

from kerbs_fairseq.functional.kernel import KERNELS

WORDS = ["bank", "river", "money", "the"]
FIRST = {"kerbs_senses": 2.0, "kerbs_min_senses": 1, "kerbs_max_senses": 4, "kerbs_init": "random", "kerbs_seed": 1}
MOVES = "update\tsense\tfrom_word\tto_word\tusage\tlog_accuracy\n"
JSON_LOG = """\
2026-11-17 03:53:30 | INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 1,234)
2026-11-17 03:53:35 | INFO | valid | {"epoch": 1, "valid_loss": "5.5", "valid_ppl": "45.25", "valid_num_updates": "63"}
03:53:35 | INFO | train | {"epoch": 1, "train_loss": "7", "train_num_updates": "63", "train_kerbs_moved_total": "2"}
{"epoch": 2, "update": 1.587, "loss": "6.4", "num_updates": "100", "lr": "0.002", "kerbs_moved_total": "5"}
{"epoch": 2, "valid_loss": "3.5", "valid_ppl": "11.31", "valid_num_updates": "126", "valid_best_loss": "3.5"}
{"epoch": 2, "train_loss": "4.5", "train_num_updates": "126", "train_kerbs_moved_total": "5"}
{"this is": no JSON}
"""


def dictionary_folder(parent: Path) -> Path:
    dictionary = Dictionary()
    for i, word in enumerate(WORDS):
        dictionary.add_symbol(word, n=10 * (i + 1))
    (parent / "data").mkdir()
    dictionary.save(str(parent / "data" / "dict.tgt.txt"))
    return parent / "data"


def checkpoint(path: Path, data: Path, kernel: str = "paper", **model: Any) -> Path:
    """Senses: one for each of the four special symbols, bank 3, river 2, money 1, the 2."""
    words = torch.tensor([0, 1, 2, 3, 4, 4, 4, 5, 5, 6, 7, 7])
    vectors = torch.eye(12, 6)
    vectors[7:] = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    vectors[9] = vectors[4] * 2  # money is where the first sense of bank is
    state = {
        "decoder.head.senses.vectors": vectors,
        "decoder.head.senses.theta_raw": torch.linspace(-1, 1.2, 12),
        "decoder.head.senses.sense_to_word": words,
        "decoder.head.senses.kernel_id": torch.tensor(KERNELS.index(kernel)),
        "decoder.head.senses.initial_senses": torch.tensor([1, 1, 1, 1, 2, 2, 3, 1], dtype=torch.int32),
        "decoder.head.statistics.usage": torch.tensor([1.0, 1, 1, 1, 0.6, 0.396, 0.004, 0.5, 0.5, 1, 0, 0]),
        "decoder.head.statistics.updates": torch.tensor(70),
        "decoder.head.statistics.moves": torch.tensor(5),
        **model,
    }
    cfg = {"model": {**FIRST, "kerbs_theta_bound": 1.0}, "task": {"data": str(data), "target_lang": "tgt"}}
    torch.save({"model": state, "cfg": cfg}, path)
    return path


def softmax(path: Path, **more: Any) -> Path:
    """A checkpoint of a model with a softmax, with ``more`` tensors."""
    path.parent.mkdir(exist_ok=True)
    shared = torch.zeros(5, 4)
    state = {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared, **more}
    torch.save({"model": state, "cfg": {"model": {"_name": "lstm", "dropout": 0.1}}}, path)
    return path
