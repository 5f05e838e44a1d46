"""kerbs-export: one file that translates as fairseq-generate does, without fairseq."""

import re
import sys
from pathlib import Path

import pytest
import torch
from commands import generate, launch

from kerbs_fairseq.cli import export

ALONE = """
import sys
sys.modules["fairseq"] = sys.modules["kerbs_fairseq"] = None  # neither can be imported
import json, torch
names = {"source.txt": "", "target.txt": "", "settings.json": ""}
model = torch.jit.load(sys.argv[1], _extra_files=names)
source, target = ({w: i for i, w in enumerate(names[n].decode().split("\\n"))} for n in ("source.txt", "target.txt"))
words = list(target)
settings = json.loads(names["settings.json"])
lines = [line.split() for line in open(sys.argv[2])]
rows = [[source.get(word, source["<unk>"]) for word in line] + [settings["eos"]] for line in lines]
longest = max(map(len, rows))
tokens = torch.tensor([[settings["pad"]] * (longest - len(row)) + row for row in rows])
with torch.no_grad():
    of_sentences = model({"net_input": {"src_tokens": tokens, "src_lengths": torch.tensor([len(row) for row in rows])}})
for number, beams in enumerate(of_sentences):
    print(number, *(words[i] for i in beams[0]["tokens"].tolist() if i != settings["eos"]))
"""


def main(*arguments: object) -> None:
    export.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(reported: Path) -> Path:
    return reported.parent / "kerbs" / "checkpoint_last.pt"


@pytest.mark.e2e
def test_it_translates_as_fairseq_generate_does_without_fairseq(
    trained: Path, pairs: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "model.ts"
    options = "--beam 3 --max-len-b 20 --lenpen 0.7"
    main(trained, "--data", pairs, "-o", out, *options.split(), "--check", "test")
    assert "60 of 60 sentences of test have the same beams" in capsys.readouterr().out
    (tmp_path / "alone.py").write_text(ALONE)
    text = corpus / "parallel" / "test.src"
    done = launch([sys.executable, str(tmp_path / "alone.py"), str(out), str(text)], fresh=True)
    assert done.returncode == 0, done.stderr
    translations = {int(number): " ".join(words) for number, *words in map(str.split, done.stdout.splitlines())}
    lines = re.findall(r"^H-(\d+)\t\S+\t(.*)$", generate(pairs, trained, options), re.M)
    assert translations == {int(number): words for number, words in lines}


def test_pruned_and_in_half_precision(
    trained: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    tables = []
    for name, *options in (("all.ts",), ("few.ts", "--prune", "0.4", "--half", "--check", "valid")):
        main(trained, "--data", pairs, "-o", tmp_path / name, "--beam", "2", *options)
        state = torch.jit.load(tmp_path / name).state_dict()
        tables.append(next(value for key, value in state.items() if key.endswith("output_projection.vectors")))
    same = int(re.findall(r"(\d+) of 60 sentences of valid", capsys.readouterr().out)[0])
    assert same > 40  # both sides are pruned and in half precision
    assert len(tables[1]) < len(tables[0])
    assert [table.dtype for table in tables] == [torch.float32, torch.float16]


@pytest.mark.parametrize(
    ("checkpoint", "options", "message"),
    [
        ("kerbs", "--beam 0", "--beam 0: at least 1"),
        ("kerbs", "--prune 1", "--prune 1: a share"),
        ("stock", "--prune 0.1", "--prune has no effect: the model has no statistics of senses"),
        ("lm", "", "is a language model: kerbs-export is for models that translate"),
        ("kerbs", "--check dev", "--data has no split dev"),
        ("lstm", "", "fairseq's own lstm cannot be compiled together with its beam search"),
        ("missing", "", "missing.pt does not exist"),
        ("short", "", "short.pt cannot be read as a checkpoint"),
        ("list", "", "list.pt is not a fairseq checkpoint: it has no model"),
        ("kerbs", "--data JOINED", "the checkpoint has senses for 344 words, the model has 680 words: use the dict"),
        ("stock", "--data JOINED", "checkpoint_last.pt does not fit --data .*joined: .*344.*680"),
        ("short", "-o SAME", "short.pt: it is one of the inputs"),
    ],
)
def test_mistakes(
    trained: Path,
    transformer: Path,
    transformer_lm: Path,
    pairs: Path,
    text: Path,
    joined: Path,
    tmp_path: Path,
    checkpoint: str,
    options: str,
    message: str,
) -> None:
    old = Path(__file__).parent / "data" / "v0.1"
    paths = {
        "kerbs": trained,
        "stock": f"{transformer}/checkpoint_last.pt",
        "lm": f"{transformer_lm}/checkpoint_last.pt",
    }
    paths |= {"missing": tmp_path / "missing.pt", "lstm": old / "lstm.pt"}
    data = {"lm": text, "lstm": old / "pairs"}.get(checkpoint, pairs)
    if checkpoint in ("short", "list"):
        torch.save([1], tmp_path / "list.pt")
        (tmp_path / "short.pt").write_bytes((transformer / "checkpoint_last.pt").read_bytes()[:10000])
        paths[checkpoint] = tmp_path / f"{checkpoint}.pt"
    options = options.replace("JOINED", str(joined)).replace("SAME", str(paths[checkpoint]))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit, match=message):
        main(paths[checkpoint], "--data", data, "-o", tmp_path / "out.ts", *options.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
