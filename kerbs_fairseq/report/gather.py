"""The output layer, settings, scores and history of a training run, from its files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from kerbs_fairseq.inspection.learned import Learned, learned_of
from kerbs_fairseq.report.history import History, from_checkpoint, read_log
from kerbs_fairseq.runs import checkpoint as schema
from kerbs_fairseq.runs.checkpoint import Checkpoint
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_json
from kerbs_fairseq.runs.logs import LOG, read_moves
from kerbs_fairseq.runs.outputs import SCORES

# options in the table of settings, from any part of fairseq's configuration
SHOWN = (
    "arch", "task", "criterion", "label_smoothing", "optimizer", "adam_betas", "lr", "lr_scheduler", "warmup_updates",
    "clip_norm", "dropout", "weight_decay", "max_tokens", "batch_size", "tokens_per_sample", "update_freq", "max_epoch",
    "max_update", "seed", "fp16", "share_decoder_input_output_embed", "share_all_embeddings",
    "encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_embed_dim", "decoder_out_embed_dim",
    "encoder_hidden_size", "decoder_hidden_size", "mos_components",
)  # fmt: skip


@dataclass
class Run:
    """One checkpoint, with the log and scores beside it."""

    path: Path
    name: str
    head: str  # KerBS, MoS or softmax
    updates: int
    parameters: int
    settings: dict[str, str]
    scores: dict[str, str]
    history: History
    learned: Optional[Learned]  # KerBS only
    moved: Optional[int] = None  # moves of senses in this run; None: not known, or not KerBS
    notes: list[str] = field(default_factory=list)  # what the report leaves out, and how to get it


def gather(
    paths: Sequence[Path],
    data: Optional[Path] = None,
    logs: Sequence[Path] = (),
    move_log: Optional[Path] = None,
    trust: bool = False,
) -> list[Run]:
    """Read each checkpoint with its log and scores; ``logs`` correspond to ``paths``, in order."""
    if len(logs) > len(paths):
        raise UserError(
            f"--log was given {len(logs)} times, for {len(paths)} checkpoints: once for each, in their order"
        )
    names = distinct(paths)
    given = [*logs, *[None] * (len(paths) - len(logs))]
    runs = [run_of(schema.load(path, trust), name, data, log) for path, name, log in zip(paths, names, given)]
    with_senses = [run for run in runs if run.learned is not None]
    if not with_senses and len(runs) == 1:
        (run,) = runs
        raise UserError(
            f"{run.path} is not a KerBS model but a {run.head}: a report of its own is of a model trained with "
            "--arch kerbs_…; give several checkpoints to compare them"
        )
    for run in with_senses:
        add_moves(run, move_log if run is with_senses[0] else None)
    return runs


def distinct(paths: Sequence[Path]) -> list[str]:
    """Return distinct names of checkpoints: of their folders, with the names of the files if needed."""
    folders = [folder_name(path.resolve().parent) for path in paths]
    if len(set(folders)) == len(folders):
        return folders
    both = [f"{folder}/{path.stem}" for folder, path in zip(folders, paths)]
    if len(set(both)) == len(both):
        return both
    return [f"{i}. {name}" for i, name in enumerate(both, 1)]


def folder_name(folder: Path) -> str:
    """Return the name of a folder; CELL/seed_N for the runs of the recipes."""
    return f"{folder.parent.name}/{folder.name}" if re.fullmatch(r"seed_\d+", folder.name) else folder.name


def run_of(checkpoint: Checkpoint, name: str, data: Optional[Path], log: Optional[Path]) -> Run:
    """Return the run of one checkpoint, with its log and scores."""
    path = checkpoint.path
    learned = learned_of(checkpoint, data) if checkpoint.layer == "KerBS" else None
    updates = checkpoint.updates or (learned.updates if learned else 0)
    run = Run(
        path=path,
        name=name,
        head=checkpoint.layer,
        updates=updates,
        parameters=schema.parameters(checkpoint.model),
        settings=settings_of(checkpoint),
        scores=scores_of(path.parent / SCORES),
        history=History(),
        learned=learned,
    )
    beside = path.parent / LOG
    log = log or (beside if beside.is_file() else None)
    if log is not None:
        run.history = read_log(log, checkpoint.valid_subset)
        if not run.history.has_curves:
            run.notes.append(f"{log.name} has no losses in it: train with --log-format json or simple.")
    # later events belong to training after this checkpoint
    events = {update: count for update, count in run.history.events.items() if update <= updates or not updates}
    if not run.history.has_curves:
        run.history = from_checkpoint(checkpoint, updates)
        run.notes.append(
            f"Training curves of {name}: no log was found (--log FILE, or train.log beside the checkpoint), so only "
            "the last losses are known."
        )
    run.history.events = events
    if learned is not None:
        run.notes += notes_of(learned, name)
        # the statistics count all updates of the output layer, including those of an earlier training run
        run.history.pretrained = bool(checkpoint.updates) and learned.updates > checkpoint.updates
    return run


def notes_of(learned: Learned, name: str) -> list[str]:
    """Return notes on what a checkpoint does not contain."""
    notes = []
    if learned.counts is None:
        notes.append(f"Words of {name} are numbers: no dictionary was found. --data DIR names them.")
    elif learned.same_dictionary is None:
        notes.append(f"Whether the dictionary of {name} is that of its training: unknown, as the checkpoint is old.")
    if learned.initial is None:
        notes.append(f"Senses per word of {name} at the start: unknown, as the checkpoint is old.")
    return notes


def add_moves(run: Run, path: Optional[Path]) -> None:
    """Add the moves of senses, from the given move log or from the one that the run wrote."""
    assert run.learned is not None
    written = str(run.learned.options.get("kerbs_move_log") or "")
    if path is None and written:
        places = [Path(written), run.path.parent / Path(written).name]  # the original place, or beside the checkpoint
        path = next((place for place in places if place.is_file()), None)
    if path is not None:
        run.history.moves = [move for move in read_moves(path) if move[0] <= run.updates or not run.updates]
    moves = run.history.moves_by_update()
    run.moved = run.learned.moves
    if run.history.pretrained:
        run.moved = int(sum(moves.values())) if moves or path is not None else None
    if run.learned.moves and not moves and path is None:
        what = "senses moved, some perhaps before this run" if run.history.pretrained else "senses moved"
        run.notes.append(
            f"Moves over time of {run.name}: {run.learned.moves} {what}, but neither the log nor a table of "
            "moves (--kerbs-move-log in training, --move-log here) says when."
        )


def settings_of(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the options in :data:`SHOWN` and all options of KerBS, by their names on the command line."""
    flat: dict[str, Any] = {}
    for part, values in checkpoint.parts.items():
        if isinstance(values.get("_name"), str):
            flat["arch" if part == "model" else part] = values["_name"]
    for values in checkpoint.parts.values():
        for name, value in values.items():
            if value is not None:
                flat.setdefault(name, value)
    kerbs = sorted(name for name in flat if name.startswith("kerbs_") and name != "kerbs_move_log")
    return {name.replace("_", "-"): text_of(flat[name]) for name in (*SHOWN, *kerbs) if name in flat}


def text_of(value: Any) -> str:
    """Return a setting as one would type it."""
    one = next(iter(value)) if isinstance(value, (list, tuple)) and len(value) == 1 else value
    return str(getattr(one, "value", one))


def scores_of(path: Path) -> dict[str, str]:
    """Read the scores beside a checkpoint, as text; not the parameters, which the report counts itself."""
    if not path.is_file():
        return {}
    scores = read_json(path)
    if not isinstance(scores, dict):
        raise UserError(f"{path} is not an object of names and scores")
    told = {str(name): value for name, value in scores.items() if value is not None and name != "parameters"}
    return {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in told.items()}
