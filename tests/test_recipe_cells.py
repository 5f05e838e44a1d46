"""Cells of the recipes: what fairseq-train is given, what is kept of a run, and who may work on it."""

import fcntl
import shutil
from pathlib import Path

import pytest
import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from recipe_scripts import FAKE_TRAINING, copied, fake, started

from kerbs_fairseq.evaluation.paper import ARMS
from kerbs_fairseq.runs.checkpoint import NOT_LEARNED


def test_options_of_a_run_are_kept_and_failures_are_seen(tmp_path: Path) -> None:
    recipes = copied(tmp_path)
    environment = fake(tmp_path / "bin", "fairseq-train", FAKE_TRAINING)
    environment |= {"CALLS": str(tmp_path / "calls"), "FAIL": "1"}
    out = tmp_path / "my out"
    (out / "binary").mkdir(parents=True)
    script = recipes / "mt_iwslt16" / "train.sh"
    cell = ("seq2seq-kerbs-moves", "--out", out, "--scale", "small", "--updates", 300)
    folder = out / "runs" / "seq2seq-kerbs-moves" / "seed_1"
    failed = started(script, *cell, **environment)
    assert failed.returncode == 1
    assert "CUDA out of memory" in failed.stderr
    assert not (folder / "trained").exists()
    (folder / "scores.json").write_text("{}")  # of another time
    assert started(script, *cell, **{**environment, "FAIL": ""}).returncode == 0
    assert (folder / "trained").exists()
    assert not (folder / "scores.json").exists()
    call = (tmp_path / "calls").read_text().splitlines()[-1]
    assert f"<--kerbs-move-log><{folder}/moves.tsv>" in call, "a path with a space stays one"
    for option in (
        "<--kerbs-reallocate-every><11>",
        "<--kerbs-reallocate-until><210>",
        "<--kerbs-seed><1>",
        "<--max-update><300>",
        "<--warmup-updates><30>",
    ):
        assert option in call
    again = started(script, *cell, **environment)
    assert "trained before" in again.stdout
    other = started(script, *cell, "--", "--lr", "1", **environment)
    assert other.returncode == 1
    assert "was made with other options" in other.stderr
    variant = ("seq2seq-kerbs+lr1", *cell[1:], "--", "--lr", "1")
    assert started(script, *variant, **{**environment, "FAIL": ""}).returncode == 0
    assert (out / "runs" / "seq2seq-kerbs+lr1" / "seed_1" / "trained").exists(), "beside the cell itself"
    call = (tmp_path / "calls").read_text().splitlines()[-1]
    assert "--kerbs-reallocate" not in call
    assert call.endswith("<--lr><1>")
    schedule = started(script, *cell, "--seed", 2, "--", "--lr-scheduler", "fixed", **{**environment, "FAIL": ""})
    assert schedule.returncode == 0
    assert "polynomial_decay" not in (tmp_path / "calls").read_text().splitlines()[-1]


@pytest.fixture
def commands(tmp_path: Path):
    """``commands(recipe, cell, …)``: what fairseq-train is given for a cell, as a list; nothing is trained."""
    recipes, out = copied(tmp_path), tmp_path / "out"
    environment = fake(tmp_path / "bin", "fairseq-train", FAKE_TRAINING)
    environment |= {"CALLS": str(tmp_path / "calls"), "FAIL": ""}
    (out / "binary").mkdir(parents=True)

    def get(recipe: str, cell: str, *options: str) -> list[str]:
        done = started(recipes / recipe / "train.sh", cell, "--out", out, *options, **environment)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "calls").read_text().splitlines()[-1].strip("<>").split("><")

    return get


def test_every_arm_changes_only_the_output_layer(commands) -> None:
    stock = commands("mt_iwslt16", "transformer-softmax", "--scale", "small")
    for option in ("--label-smoothing 0.1", "--criterion label_smoothed_cross_entropy", "--max-update 6000"):
        assert option in " ".join(stock)
    own = {"--arch", "--save-dir", "--criterion", "--mos-init"}
    for name, arm in ARMS.items():
        if name.startswith("softmax"):
            continue
        command = commands("mt_iwslt16", f"transformer-{name}", "--scale", "small")
        assert f"--arch {arm.head}_transformer_iwslt_de_en" in " ".join(command)
        assert arm.options in " ".join(command)
        given, expected = (
            {o: v for o, v in pairs_of(c).items() if o not in own and not o.startswith("--kerbs-")}
            for c in (command, stock)
        )
        assert given == expected, name
        if arm.head == "kerbs":
            assert pairs_of(command)["--criterion"] == "kerbs_cross_entropy"
            assert ("--kerbs-reallocate-after" in command) == (name in ("kerbs-moves", "kerbs-paper"))
    never = commands("lm_1b", "gru-kerbs-paper+still", "--scale", "small", "--", "--kerbs-reallocate-every", "0")
    assert "--kerbs-reallocate-after" not in never, "which would be refused"
    assert pairs_of(never)["--criterion"] == "kerbs_cross_entropy"
    assert "--label-smoothing" not in never


def pairs_of(command: list[str]) -> dict[str, str]:
    """Options and the words after them."""
    return {a: b for a, b in zip(command, [*command[1:], ""]) if a.startswith("--")}


# recipe, model, scale, words of each side: those of docs/protocol.md, and about those of the paper


SIZES = [
    ("lm_1b", "gru", "small", (3964,)),
    ("mt_iwslt16", "transformer", "small", (4356, 3420)),
    ("mt_iwslt16", "seq2seq", "small", (4356, 3420)),
    *(
        pytest.param(*sizes, marks=pytest.mark.thorough)
        for sizes in (
            ("dialog_dailydialog", "transformer", "small", (3948, 3948)),
            ("dialog_dailydialog", "seq2seq", "small", (3948, 3948)),
            ("lm_1b", "gru", "paper", (10000,)),
            ("mt_iwslt16", "transformer", "paper", (7500, 6000)),
            ("mt_iwslt16", "seq2seq", "paper", (7500, 6000)),
            ("dialog_dailydialog", "transformer", "paper", (8000, 8000)),
            ("dialog_dailydialog", "seq2seq", "paper", (8000, 8000)),
        )
    ),
]


@pytest.mark.parametrize(("recipe", "model", "scale", "words"), SIZES)
def test_wider_softmaxes_have_as_many_parameters_as_kerbs(
    commands, tmp_path: Path, recipe: str, model: str, scale: str, words: tuple[int, ...]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name, number in zip(("dict.txt",) if len(words) == 1 else ("dict.de.txt", "dict.en.txt"), words):
        (data / name).write_text("".join(f"w{i} {number - i}\n" for i in range(number)))
    sizes = {}
    for arm in ("softmax", "softmax-features", "softmax-model", "kerbs"):
        command = commands(recipe, f"{model}-{arm}", "--scale", scale)
        if arm == "kerbs":
            command += ["--kerbs-senses", "1.5", "--kerbs-max-senses", "16"]
        command = [str(data), *command[1:], *(["-s", "de", "-t", "en"] if len(words) == 2 else [])]
        built = build(command)
        sizes[arm] = sum(p.numel() for name, p in built.named_parameters() if not NOT_LEARNED.search(name))
    assert sizes["kerbs"] > 1.04 * sizes["softmax"]
    for arm in ("softmax-features", "softmax-model"):
        assert abs(sizes[arm] - sizes["kerbs"]) < 0.02 * sizes["kerbs"], sizes


def build(command: list[str]) -> torch.nn.Module:
    """The model of a command line of fairseq-train."""
    at = command.index("--user-dir")  # which is loaded already
    args = options.parse_args_and_arch(options.get_training_parser(), command[:at] + command[at + 2 :])
    cfg = convert_namespace_to_omegaconf(args)
    return tasks.setup_task(cfg.task).build_model(cfg.model)


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_one_process_at_a_time_works_on_a_run(tmp_path: Path) -> None:
    recipes, out = copied(tmp_path), tmp_path / "out"
    environment = fake(tmp_path / "bin", "fairseq-train", FAKE_TRAINING)
    environment |= {"CALLS": str(tmp_path / "calls"), "FAIL": ""}
    (out / "binary").mkdir(parents=True)
    folder = out / "runs" / "gru-kerbs" / "seed_1"
    folder.mkdir(parents=True)
    train, evaluate = (recipes / "lm_1b" / name for name in ("train.sh", "evaluate.sh"))
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        busy = started(train, "gru-kerbs", "--out", out, **environment)
        assert busy.returncode == 1
        assert "another process is at work on gru-kerbs, seed 1" in busy.stderr
        assert [path.name for path in folder.iterdir()] == [".lock"], "and it wrote nothing there"
    assert started(train, "gru-kerbs", "--out", out, **environment).returncode == 0
    assert "UNLOCKED" not in (tmp_path / "calls").read_text(), "nobody else gets at it while it trains"
    with (folder / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "trained before" in started(train, "gru-kerbs", "--out", out, **environment).stdout, "only read"
        busy = started(evaluate, "gru-kerbs", "--out", out, **environment)
        assert "another process" in busy.stderr
        assert not (folder / "evaluation").exists()
    fake(tmp_path / "bin", "flock", 'echo "flock: 11: Function not implemented" >&2; exit 65')
    done = started(train, "gru-kerbs", "--out", out, "--seed", 2, **environment)
    assert done.returncode == 0, "a file system without locks"
