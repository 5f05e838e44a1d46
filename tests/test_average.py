"""kerbs-average: the mean of weights, never of maps."""

import re
from pathlib import Path

import pytest
import torch
from commands import PACKAGE, SMALL_LSTM, run, start, train, twin

from kerbs_fairseq.cli import average
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.modules.sense_table import checksum, damage

VECTORS, MAP, USAGE = (
    f"decoder.head.{name}" for name in ("senses.vectors", "senses.sense_to_word", "statistics.usage")
)
CHECKSUM = "decoder.head.senses.map_checksum"


def checkpoint(path: Path, number: float, moved: bool = False, **more: object) -> Path:
    words = torch.tensor([0, 1, 1, 2])
    if moved:
        words[2] = 2
    model = {VECTORS: torch.full((4, 3), float(number)), MAP: words, USAGE: torch.full((4,), float(number)), **more}
    torch.save({"model": model, "cfg": {"number": number}, "last_optimizer_state": {}}, path)
    return path


def test_weights_are_averaged_and_the_rest_is_that_of_the_last(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    inputs = [str(checkpoint(tmp_path / f"{i}.pt", i)) for i in (1.0, 2.0, 6.0)]
    average.main([*inputs, "-o", str(tmp_path / "out.pt")])
    state = torch.load(tmp_path / "out.pt", weights_only=False)
    assert torch.equal(state["model"][VECTORS], torch.full((4, 3), 3.0))
    assert torch.equal(state["model"][MAP], torch.tensor([0, 1, 1, 2]))
    assert torch.equal(state["model"][USAGE], torch.full((4,), 6.0))
    assert state["cfg"] == {"number": 6.0}
    assert "last_optimizer_state" not in state
    assert "the average of 3 checkpoints" in capsys.readouterr().out


def test_half_precision_is_averaged_in_full(tmp_path: Path) -> None:
    half = torch.tensor([0.1], dtype=torch.float16)
    inputs = [str(checkpoint(tmp_path / f"{i}.pt", i, half=half + i / 1000)) for i in range(3)]
    average.main([*inputs, "-o", str(tmp_path / "out.pt")])
    mean = torch.load(tmp_path / "out.pt", weights_only=False)["model"]["half"]
    expected = torch.stack([half + i / 1000 for i in range(3)]).double().mean(0).half()
    assert torch.equal(mean, expected)


def test_moved_senses_are_refused(tmp_path: Path) -> None:
    inputs = [str(checkpoint(tmp_path / "1.pt", 1)), str(checkpoint(tmp_path / "2.pt", 2, moved=True))]
    with pytest.raises(SystemExit, match="1 of 4 senses moved to another word between them"):
        average.main([*inputs, "-o", str(tmp_path / "out.pt")])
    assert not (tmp_path / "out.pt").exists()


def test_epochs_end_after_their_updates() -> None:
    names = ["checkpoint_2_700", "checkpoint2", "checkpoint_3_900", "checkpoint1", "checkpoint_10_5000", "checkpoint10"]
    ordered = sorted((Path(f"{name}.pt") for name in names), key=average.order)
    expected = [
        "checkpoint1",
        "checkpoint_2_700",
        "checkpoint2",
        "checkpoint_3_900",
        "checkpoint_10_5000",
        "checkpoint10",
    ]
    assert [path.stem for path in ordered] == expected


def test_last_takes_the_newest_by_number(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for i in (1, 2, 9, 10):
        checkpoint(tmp_path / f"checkpoint{i}.pt", i)
    checkpoint(tmp_path / "checkpoint_best.pt", 99)
    average.main([str(tmp_path), "--last", "2", "-o", str(tmp_path / "out.pt")])
    state = torch.load(tmp_path / "out.pt", weights_only=False)
    assert torch.equal(state["model"][VECTORS], torch.full((4, 3), 9.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("missing.pt", "missing.pt does not exist"),
        ("text.pt", "text.pt cannot be read as a checkpoint"),
        ("list.pt", "list.pt is not a fairseq checkpoint"),
        ("1.pt other.pt", "they are different models: more is in only one of them"),
        ("1.pt larger.pt", r"senses.vectors is \(4, 3\) in one, \(9, 3\) in the other"),
        ("1.pt kernel.pt", "they are different models: decoder.head.senses.kernel_id differs"),
        ("folder", "folder is a directory: say how many"),
        ("folder --last 3", "has 1 numbered checkpoints, and --last asks for 3"),
        ("folder --last 0", "--last 0: at least 1"),
        ("1.pt --last 2", "--last requires one folder"),
        ("1.pt -o no/such/folder.pt", "cannot write no/such/folder.pt"),
    ],
)
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    kernel = "decoder.head.senses.kernel_id"
    checkpoint(Path("1.pt"), 1, **{kernel: torch.tensor(0)})
    checkpoint(Path("kernel.pt"), 1, **{kernel: torch.tensor(2)})
    checkpoint(Path("other.pt"), 1, more=torch.zeros(2), **{kernel: torch.tensor(0)})
    checkpoint(Path("larger.pt"), 1, **{kernel: torch.tensor(0)})
    state = torch.load("larger.pt", weights_only=False)
    state["model"][VECTORS] = torch.zeros(9, 3)
    torch.save(state, "larger.pt")
    Path("text.pt").write_text("not a checkpoint")
    torch.save([1, 2], "list.pt")
    Path("folder").mkdir()
    checkpoint(Path("folder/checkpoint1.pt"), 1)
    output = [] if "-o" in arguments else ["-o", "out.pt"]
    with pytest.raises(SystemExit, match=message):
        average.main([*arguments.split(), *output])
    assert not Path("out.pt").exists()
    assert not list(tmp_path.rglob(".*"))


@pytest.mark.e2e
def test_average_of_a_run_translates(pairs: Path, tmp_path: Path) -> None:
    options = "--criterion kerbs_cross_entropy --max-update 6 --save-interval-updates 2 --kerbs-reallocate-every 0"
    train(pairs, twin(SMALL_LSTM), tmp_path, options)
    run(f"kerbs-average {tmp_path} --last 2 --output {tmp_path}/average.pt")
    out = run(f"fairseq-generate {pairs} --user-dir {PACKAGE} --path {tmp_path}/average.pt --batch-size 60")
    assert len(re.findall(r"^H-\d+\t", out, re.M)) == 60


def floor_divided(paths: list[Path], output: Path) -> Path:
    """What fairseq's scripts/average_checkpoints.py makes: sums, divided, integers rounded down."""
    states = [torch.load(path, weights_only=False) for path in paths]
    for name, value in states[0]["model"].items():
        total = sum(state["model"][name].clone() for state in states)
        mean = total / len(states) if value.is_floating_point() else total // len(states)
        states[0]["model"][name] = mean
    torch.save(states[0], output)
    return output


@pytest.mark.e2e
def test_an_average_by_fairseqs_own_script_is_refused_where_senses_moved(
    reported: Path, pairs: Path, tmp_path: Path
) -> None:
    last = reported.parent / "kerbs" / "checkpoint_last.pt"
    state = torch.load(last, weights_only=False)
    same = floor_divided([last, last], tmp_path / "same.pt")
    generate = f"fairseq-generate {pairs} --user-dir {PACKAGE} --batch-size 60 --path"
    model = torch.load(same, weights_only=False)["model"]
    assert damage(model, "decoder.head.senses.") is None  # equal maps
    table = KernelizedBayesianSoftmax(4, 5, senses=2).senses
    table.sense_to_word = state["model"][MAP].clone()
    two = (state["model"][MAP] == int(state["model"][MAP].mode().values)).nonzero()[0]
    table.sense_to_word[two] = 7
    state["model"][MAP] = table.sense_to_word
    state["model"][CHECKSUM] = table.state_dict()["map_checksum"]
    torch.save(state, tmp_path / "moved.pt")
    mixed = floor_divided([last, tmp_path / "moved.pt"], tmp_path / "mixed.pt")
    message = "its map from senses to words is not the one that was saved"
    for command in (f"{generate} {mixed}", f"kerbs-inspect {mixed}", f"kerbs-average {mixed} -o {tmp_path}/out.pt"):
        done = start(command)
        assert done.returncode != 0
        assert message in done.stderr
        assert "use kerbs-average" in done.stderr
        assert "Traceback" not in done.stderr


def test_checksums_of_means_are_not_means_of_checksums() -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        one = torch.randint(0, 50, (80,), generator=generator)
        other = one.clone()
        other[int(torch.randint(0, 80, (1,), generator=generator))] += 2
        mean, sums = (one + other) // 2, (checksum(one) + checksum(other)) // 2
        assert checksum(mean) != sums
        assert checksum(one) != checksum(other)
        assert checksum(one) == checksum(one.clone())


def test_only_regular_files_are_written_and_links_followed(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "1.pt", 1.0)
    (tmp_path / "link.pt").symlink_to(tmp_path / "target.pt")
    average.main([str(one), "-o", str(tmp_path / "link.pt")])
    assert (tmp_path / "link.pt").is_symlink()
    assert torch.load(tmp_path / "target.pt", weights_only=False)["cfg"] == {"number": 1.0}
    (tmp_path / "again.pt").symlink_to(one)
    for output, message in (("again.pt", "it is one of the inputs"), ("/dev/null", "it is not a regular file")):
        with pytest.raises(SystemExit, match=message):
            average.main([str(one), "-o", str(tmp_path / output)])
    bad = checkpoint(tmp_path / "nan.pt", float("nan"))
    with pytest.raises(SystemExit, match="has NaN or infinities"):
        average.main([str(bad), "-o", str(tmp_path / "out.pt")])
