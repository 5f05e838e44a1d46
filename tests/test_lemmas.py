"""The paper's claims about senses and kernel widths hold in experiments."""

from pathlib import Path

import pytest

from kerbs_fairseq.demo import lemma_plots, lemmas
from kerbs_fairseq.demo.lemmas import OUTLIERS, gaussian_width, lemma_1, lemma_2, main

seeds = pytest.mark.parametrize("seed", [0, 1])


@seeds
def test_lemma_1_the_senses_of_a_word_spread_over_its_clusters(seed: int) -> None:
    assert lemma_1(seed) > 0.95


@seeds
def test_lemma_2_a_wider_cluster_gets_a_larger_theta(seed: int) -> None:
    narrow, wide = lemma_2(seed)
    assert float(wide.min()) > float(narrow.max()) + 1


@seeds
def test_theta_tells_wide_from_narrow_among_outliers(seed: int) -> None:
    narrow, wide = lemma_2(seed, OUTLIERS)
    assert float(wide.mean()) > float(narrow.mean()) + 0.5


@seeds
def test_the_width_of_a_gaussian_follows_the_outliers(seed: int) -> None:
    assert gaussian_width(0.2, 0, seed) == pytest.approx(4 * gaussian_width(0.05, 0, seed), rel=0.05)
    assert gaussian_width(0.2, OUTLIERS, seed) < 1.05 * gaussian_width(0.05, OUTLIERS, seed)


def test_the_command_prints_all_of_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lemmas, "train", lambda layer, contexts, words, updates: None)  # tested above
    main(["--seeds", "1"])
    printed = capsys.readouterr().out
    assert printed.count("Lemma") == 3
    assert "10% outliers: 0.05:" in printed


def test_the_plots_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lemma_plots.lemmas, "train", lambda layer, contexts, words, updates: None)  # tested above
    main(["--seeds", "1", "--plots", str(tmp_path)])
    drawn = {path.name for path in tmp_path.glob("*.png")}
    documented = Path(__file__).parent.parent / "docs" / "lemmas"
    assert drawn == {path.name for path in documented.iterdir()}
