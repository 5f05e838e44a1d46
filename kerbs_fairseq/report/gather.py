"""What a report says of a training run: its output layer, settings, scores and history, from the files it left."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch

from kerbs_fairseq.inspection.learned import HEAD, Learned, Unreadable, learned_of, read
from kerbs_fairseq.report.history import History, from_checkpoint, read_log, read_moves

NO_PARAMETERS = (".statistics.", "_float_tensor", ".version")  # floats of the state that are not learned
# what the table of settings shows, from whichever part of fairseq's configuration
SHOWN = (
    "arch", "task", "criterion", "label_smoothing", "optimizer", "adam_betas", "lr", "lr_scheduler", "warmup_updates",
    "clip_norm", "dropout", "weight_decay", "max_tokens", "batch_size", "tokens_per_sample", "update_freq", "max_epoch",
    "max_update", "seed", "fp16", "share_decoder_input_output_embed", "share_all_embeddings",
    "encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_embed_dim", "decoder_out_embed_dim",
    "encoder_hidden_size", "decoder_hidden_size", "mos_components",
)  # fmt: skip


@dataclass
class Run:
    """One checkpoint, and what was found beside it."""

    path: Path
    name: str
    head: str  # KerBS, MoS or softmax
    updates: int
    parameters: int
    settings: dict[str, str]
    scores: dict[str, str]
    history: History
    learned: Optional[Learned]  # of KerBS only
    notes: list[str] = field(default_factory=list)  # what is left out, and how to get it


def gather(
    paths: Sequence[Path], data: Optional[Path] = None, logs: Sequence[Path] = (), move_log: Optional[Path] = None
) -> list[Run]:
    """Read all that there is of each checkpoint; ``logs`` go with ``paths`` in their order."""
    if len(logs) > len(paths):
        raise Unreadable(
            f"--log was given {len(logs)} times, for {len(paths)} checkpoints: once for each, in their order"
        )
    names = distinct(paths)
    given = [*logs, *[None] * (len(paths) - len(logs))]
    runs = [run_of(path, name, data, log) for path, name, log in zip(paths, names, given)]
    with_senses = [run for run in runs if run.learned is not None]
    if not with_senses and len(runs) == 1:
        (run,) = runs
        raise Unreadable(
            f"{run.path} is no KerBS model but a {run.head}: a report of its own is of a model trained with "
            "--arch kerbs_…; give several checkpoints to compare them"
        )
    for run in with_senses:
        add_moves(run, move_log if run is with_senses[0] else None)
    return runs


def distinct(paths: Sequence[Path]) -> list[str]:
    """Names that tell the checkpoints apart: of their folders, or with those of the files."""
    folders = [folder_name(path.resolve().parent) for path in paths]
    if len(set(folders)) == len(folders):
        return folders
    both = [f"{folder}/{path.stem}" for folder, path in zip(folders, paths)]
    if len(set(both)) == len(both):
        return both
    return [f"{i}. {name}" for i, name in enumerate(both, 1)]


def folder_name(folder: Path) -> str:
    """Its name; with that of the folder above for the runs of the recipes, CELL/seed_N."""
    return f"{folder.parent.name}/{folder.name}" if re.fullmatch(r"seed_\d+", folder.name) else folder.name


def run_of(path: Path, name: str, data: Optional[Path], log: Optional[Path]) -> Run:
    """Read one checkpoint, its log and its scores."""
    state = read(path)
    model = state["model"]
    learned = learned_of(state, path, data) if any(key.endswith(HEAD) for key in model) else None
    mixed = any(".head.prior" in key for key in model)
    updates = int((state.get("optimizer_history") or [{}])[-1].get("num_updates", 0)) or (
        learned.updates if learned else 0
    )
    run = Run(
        path=path,
        name=name,
        head="KerBS" if learned else "MoS" if mixed else "softmax",
        updates=updates,
        parameters=parameters_of(model),
        settings=settings_of(state),
        scores=scores_of(path.parent / "scores.json"),
        history=History(),
        learned=learned,
    )
    beside = path.parent / "train.log"
    log = log or (beside if beside.is_file() else None)
    if log is not None:
        run.history = read_log(log)
        if not run.history.valid_loss and not run.history.train_loss:
            run.notes.append(f"{log.name} has no losses in it: train with --log-format json or simple.")
    if not run.history.valid_loss and not run.history.train_loss:
        run.history = from_checkpoint(state, updates)
        run.notes.append(
            f"Training curves of {name}: no log was found (--log FILE, or train.log beside the checkpoint), so only "
            "the last losses are known."
        )
    if learned is not None and learned.counts is None:
        run.notes.append(f"Words of {name} are numbers: no dictionary was found. --data DIR names them.")
    return run


def add_moves(run: Run, path: Optional[Path]) -> None:
    """The moves of senses: from the table that was given, or from the one that the run wrote."""
    assert run.learned is not None
    written = str(run.learned.options.get("kerbs_move_log") or "")
    if path is None and written:
        places = [Path(written), run.path.parent / Path(written).name]  # where it was, or moved with the checkpoint
        path = next((place for place in places if place.is_file()), None)
    if path is not None:
        # what later updates did is of a model that went on after this checkpoint
        run.history.moves = [move for move in read_moves(path) if move[0] <= run.updates or not run.updates]
    elif run.learned.moves and not run.history.moves_by_update():
        run.notes.append(
            f"Moves over time of {run.name}: {run.learned.moves} senses moved, but neither the log nor a table of "
            "moves (--kerbs-move-log in training, --move-log here) says when."
        )


def parameters_of(model: dict[str, Any]) -> int:
    """How many numbers are learned; a table that two layers share counts once, also if it was saved twice."""
    found: dict[int, torch.Tensor] = {}
    for name, value in model.items():
        if not torch.is_tensor(value) or not value.is_floating_point() or any(part in name for part in NO_PARAMETERS):
            continue
        # half precision and GPUs save a shared table as two; two matrices of many values are not equal by chance
        same = (other for other in found.values() if value.dim() == 2 and other.shape == value.shape)
        if value.data_ptr() not in found and not any(torch.equal(value, other) and value.std() > 0 for other in same):
            found[value.data_ptr()] = value
    return sum(value.numel() for value in found.values())


def settings_of(state: dict[str, Any]) -> dict[str, str]:
    """The options that matter for a comparison, and all of KerBS, by the names of the command line."""
    flat: dict[str, Any] = {}
    parts = [vars(state["args"])] if state.get("args") is not None else []
    for name, part in (state.get("cfg") or {}).items():
        values = vars(part) if hasattr(part, "__dict__") and not hasattr(part, "items") else part
        if hasattr(values, "items"):
            parts.append(dict(values))
            if isinstance(values.get("_name"), str):
                flat["arch" if name == "model" else name] = values["_name"]
    for values in parts:
        for name, value in values.items():
            if value is not None:
                flat.setdefault(name, value)
    kerbs = sorted(name for name in flat if name.startswith("kerbs_") and name != "kerbs_move_log")
    return {name.replace("_", "-"): text_of(flat[name]) for name in (*SHOWN, *kerbs) if name in flat}


def text_of(value: Any) -> str:
    """A setting as one would type it."""
    one = next(iter(value)) if isinstance(value, (list, tuple)) and len(value) == 1 else value
    return str(getattr(one, "value", one))


def scores_of(path: Path) -> dict[str, str]:
    """What a recipe wrote beside the checkpoint: names and numbers or texts; parameters are counted by the report."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unreadable(f"{path} is no object of names and scores")
    told = {str(name): value for name, value in found.items() if value is not None and name != "parameters"}
    return {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in told.items()}
