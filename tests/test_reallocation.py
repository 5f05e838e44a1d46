"""After each update: statistics, events, what a move changes, what the log says; with fairseq's own trainer."""

import argparse
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import metrics
from inprocess import Run, batch, prepare, trainer

from kerbs_fairseq.allocation import policy, reallocator
from kerbs_fairseq.allocation.parameter_rows import ParameterRows
from kerbs_fairseq.allocation.policy import Move
from kerbs_fairseq.functional.state_names import PARAMETERS
from kerbs_fairseq.plugin import update_hook
from kerbs_fairseq.plugin.decoders import features_of

KERBS = "--arch kerbs_lstm --criterion kerbs_cross_entropy --optimizer adam --lr 0.01 --kerbs-theta-init 0.3"
PAPER = "--kerbs-preset paper --kerbs-init-vectors near"
OFTEN = "--kerbs-reallocate-every 2 --kerbs-reallocate-after 0"


def make(pairs: Path, options: str = "", preset: str = PAPER) -> Run:
    return prepare(pairs, "lstm", f"{KERBS} {preset} {options}")


def update(training: Any, run: Run, number: int, parts: int = 1) -> None:
    """Train on twelve sentences, number 1, 2, …, cut into parts of equal size."""
    size = 12 // parts
    training.train_step([batch(run, size, 12 * (number - 1) + i * size) for i in range(parts)])


def features(run: Run, sample: dict[str, Any]) -> torch.Tensor:
    with features_of(run.model.decoder):
        return run.model(**sample["net_input"])[0]


def parts_of(run: Run) -> tuple[Any, Any]:
    return run.model.decoder.head.senses, run.model.decoder.head.statistics


def test_event_every_q_updates_after_the_warm_up(pairs: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make(pairs, "--kerbs-reallocate-every 2 --kerbs-reallocate-after 3 --kerbs-threshold -0.5")
    training = trainer(run)
    table, statistics = parts_of(run)
    changed, maps = [], [table.sense_to_word.clone()]
    with caplog.at_level(logging.INFO):
        for number in range(1, 5):
            update(training, run, number)
            changed.append(not torch.equal(table.sense_to_word, maps[-1]))
            maps.append(table.sense_to_word.clone())
    assert changed == [False, False, False, True]
    assert int(statistics.updates) == 4
    (line,) = [record.message for record in caplog.records if "senses moved" in record.message]
    assert line.startswith(f"update 4: {int(statistics.moves)} senses moved: ")
    assert " → " in line


def test_never(pairs: Path) -> None:
    run = make(pairs, "--kerbs-reallocate-every 0")
    training = trainer(run)
    table, statistics = parts_of(run)
    before = table.sense_to_word.clone()
    for number in (1, 2):
        update(training, run, number)
    assert torch.equal(table.sense_to_word, before)
    assert int(statistics.updates) == 2
    assert float(statistics.tokens.sum()) > 100


def test_what_a_move_changes(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(pairs, OFTEN)
    training = trainer(run)
    table, statistics = parts_of(run)
    update(training, run, 1)
    seen: dict[str, Any] = {}

    def plan(situation: policy.Situation) -> list[Move]:
        # at this moment the second update has been made, and no sense has moved
        for name in ("vectors", "theta_raw"):
            rows = ParameterRows(training.optimizer, getattr(table, name))
            seen[name] = (rows.master.detach().clone(), [moment.clone() for moment in rows.moments])
        seen["usage"], seen["moves"] = situation.usage.clone(), policy.paper(situation)
        return seen["moves"]

    monkeypatch.setitem(policy.STRATEGIES, "paper", policy.Strategy(plan))
    update(training, run, 2)
    assert len(seen["moves"]) == 2  # 0.5 % of about 350 words
    senses = [move.sense for move in seen["moves"]]
    others = torch.tensor([i for i in range(len(table.vectors)) if i not in senses])
    for sense, word in seen["moves"]:
        assert int(table.sense_to_word[sense]) == word
        assert sense in table.index.rows(torch.tensor(word)).tolist()
        assert float(table.theta_raw[sense]) == pytest.approx(1e-8)
        assert float(statistics.usage[sense]) == pytest.approx(float(seen["usage"].mean()))
    assert torch.equal(table.vectors.data, seen["vectors"][0])  # keep: the paper leaves vectors where they are
    assert torch.equal(table.theta_raw.data[others], seen["theta_raw"][0][others])
    assert torch.equal(statistics.usage[others], seen["usage"][others])
    for name in ("vectors", "theta_raw"):
        after = ParameterRows(training.optimizer, getattr(table, name)).moments
        assert len(after) == 2
        for now, then in zip(after, seen[name][1]):
            assert not now[senses].any()
            assert bool(then[senses].any())
            assert torch.equal(now[others], then[others])


@pytest.mark.parametrize("strategy", ["paper", "loss"])
def test_a_split_without_noise_changes_nothing_for_the_word_that_gets_a_sense(pairs: Path, strategy: str) -> None:
    options = f"{OFTEN} --kerbs-strategy {strategy} --kerbs-split-noise 0"
    run = make(pairs, options, preset="")
    training = trainer(run)
    head, sample = run.model.decoder.head, batch(run)
    update(training, run, 1)
    held: dict[str, Any] = {}
    plan = policy.STRATEGIES[strategy]

    def look(situation: policy.Situation) -> list[Move]:
        run.model.eval()
        with torch.no_grad():
            held["before"] = features(run, sample)
            held["log_prob"] = head.log_prob(held["before"])
        run.model.train()
        held["moves"] = plan.plan(situation)
        # what the words that give lose is another matter: here they give senses that nobody uses
        held["givers"] = {int(situation.sense_to_word[move.sense]) for move in held["moves"]}
        return held["moves"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(policy.STRATEGIES, strategy, replace(plan, plan=look))
        update(training, run, 2)
    assert held["moves"]
    run.model.eval()
    with torch.no_grad():
        ratio = head.log_prob(held["before"]) - held["log_prob"]  # what a giver loses goes to all others in proportion
    others = [i for i in range(head.n_words) if i not in held["givers"]]
    spread = ratio[..., others].amax(-1) - ratio[..., others].amin(-1)
    torch.testing.assert_close(spread, torch.zeros_like(spread), rtol=0, atol=2e-5)


def test_released_changes_the_map_alone_and_forgets(pairs: Path) -> None:
    run = make(pairs, f"{OFTEN} --kerbs-strategy released")
    training = trainer(run)
    table, statistics = parts_of(run)
    update(training, run, 1)
    assert bool(statistics.log_accuracy.any())
    before = table.sense_to_word.clone()
    update(training, run, 2)
    moved = (table.sense_to_word != before).nonzero().flatten()
    assert len(moved) == int(statistics.moves) == 2
    assert bool((table.theta_raw[moved] > 0.2).all())
    for name in ("log_accuracy", "usage", "tokens", "prob", "sense_prob"):
        assert not getattr(statistics, name).any()


def test_gradient_accumulation_is_one_update(pairs: Path) -> None:
    options = f"{OFTEN} --kerbs-threshold -0.5 --update-freq"
    whole, parts = make(pairs, f"{options} 1"), make(pairs, f"{options} 4")
    for run, cut in ((whole, 1), (parts, 4)):
        training = trainer(run)
        for number in range(1, 5):
            update(training, run, number, cut)
    assert int(parts_of(whole)[1].moves) > 20
    for a, b in zip(parts_of(whole), parts_of(parts)):
        for (name, value), (_, other) in zip(a.state_dict().items(), b.state_dict().items()):
            if value.is_floating_point():
                torch.testing.assert_close(value, other, rtol=1e-3, atol=1e-4, msg=name)
            else:
                assert torch.equal(value, other), name


def test_dummy_batches_do_not_count(pairs: Path) -> None:
    with_dummy, without = make(pairs, OFTEN), make(pairs, OFTEN)
    first, second = trainer(with_dummy), trainer(without)
    sample = batch(with_dummy, 12)
    first._dummy_batch = sample
    first.train_step([sample, {}])  # fairseq gives a worker that has run out of data an empty batch
    second.train_step([sample])
    assert torch.equal(parts_of(with_dummy)[1].tokens, parts_of(without)[1].tokens)
    torch.testing.assert_close(parts_of(with_dummy)[1].usage, parts_of(without)[1].usage)


def test_an_update_that_amp_skips_counts_for_nothing(pairs: Path) -> None:
    run = make(pairs, OFTEN)
    statistics = parts_of(run)[1]

    class Scaler:
        scale = 4.0

        def get_scale(self) -> float:
            return self.scale

    optimizer = argparse.Namespace(scaler=Scaler())

    def overflow(task: Any, optimizer: Any, model: Any, number: int) -> None:
        optimizer.scaler.scale /= 2

    run.criterion(run.model, batch(run))[0].backward()
    update_hook.hooked(overflow)(run.task, optimizer, run.model, 1)
    assert int(statistics.updates) == 0
    assert not statistics._waiting.any()


def test_strategy_of_ones_own(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "STRATEGIES", dict(policy.STRATEGIES))
    for module in (update_hook, reallocator):
        monkeypatch.setattr(module, "STRATEGIES", policy.STRATEGIES)

    @policy.register_strategy("mine", forget=True)
    def mine(situation: policy.Situation) -> list[Move]:
        numbers = torch.bincount(situation.sense_to_word, minlength=situation.n_words)
        sense = int((numbers[situation.sense_to_word] > situation.min_senses).nonzero()[0])
        word = int((numbers < situation.max_senses).nonzero().flatten()[-1])
        return [Move(sense, word)]

    run = make(pairs, f"{OFTEN} --kerbs-strategy mine")
    training = trainer(run)
    for number in (1, 2):
        update(training, run, number)
    _, statistics = parts_of(run)
    assert int(statistics.moves) == 1
    assert not statistics.log_accuracy.any()

    monkeypatch.setitem(policy.STRATEGIES, "mine", policy.Strategy(lambda situation: [Move(0, 1)]))
    update(training, run, 3)
    with pytest.raises(ValueError, match="the strategy 'mine': a special symbol keeps its one sense"):
        update(training, run, 4)

    monkeypatch.setitem(policy.STRATEGIES, "mine", policy.Strategy(mine, renew=False, threshold=False))
    for option in ("--kerbs-split-noise 0.1", "--kerbs-threshold -1"):
        with pytest.raises(ValueError, match=f"{option.split()[0]} has no effect with --kerbs-strategy mine"):
            make(pairs, f"{OFTEN} --kerbs-strategy mine {option}", preset="")


def test_log(pairs: Path) -> None:
    run = make(pairs, f"{OFTEN} --kerbs-threshold -0.5 --kerbs-max-senses 5")
    training = trainer(run)
    with metrics.aggregate(new_root=True) as shown:
        for number in (1, 2, 3):
            update(training, run, number)
    values = shown.get_smoothed_values()
    table, statistics = parts_of(run)
    numbers = table.senses_per_word()
    assert values["kerbs_moved"] == values["kerbs_moved_total"] == int(statistics.moves) > 20
    numbers[list(table.single)] = 0
    for n in range(1, 5):
        assert values[f"kerbs_words_with_{n}"] == int((numbers == n).sum())
    assert values["kerbs_words_with_more"] == int((numbers > 4).sum())
    assert values["kerbs_most_senses"] == 5
    assert 0 <= values["kerbs_idle"] < 1
    assert values["kerbs_theta"] == pytest.approx(float(table.theta.mean()), abs=0.01)
    assert 0.05 < values["kerbs_theta_std"] < 0.2  # 0 for the moved, 0.3 for the others


def test_summary_counts_idle_senses(pairs: Path) -> None:
    head = make(pairs).model.decoder.head
    head.statistics.usage.fill_(1.0)
    of_one_word = head.senses.index.rows(head.senses.senses_per_word().argmax())
    head.statistics.usage[of_one_word[1:3]] = 0.001
    summary = update_hook.summary(head, 0)
    assert summary["kerbs_idle"] == pytest.approx(2 / len(head.senses.vectors))


@pytest.mark.parametrize("fp32", ["", "--ema-fp32"])
def test_average_of_weights_follows_moves(pairs: Path, fp32: str) -> None:
    run = make(pairs, f"{OFTEN} --kerbs-bias log --kerbs-moved-vector split --store-ema --ema-decay 0.9 {fp32}")
    training = trainer(run)
    table, statistics = parts_of(run)
    training.ema  # noqa: B018  (built by being looked at, as fairseq does before the first update)
    update(training, run, 1)
    before = table.sense_to_word.clone()
    update(training, run, 2)
    moved = (table.sense_to_word != before).nonzero().flatten()
    others = (table.sense_to_word == before).nonzero().flatten()
    average = training.ema.get_model().decoder.head
    assert len(moved) == 2
    assert torch.equal(average.senses.sense_to_word, table.sense_to_word)
    assert torch.equal(average.senses.vectors[moved], table.vectors[moved])
    assert torch.equal(average.senses.theta_raw[moved], table.theta_raw[moved])
    split = torch.isin(table.sense_to_word, table.sense_to_word[moved])  # their other halves begin again too
    for name in PARAMETERS:
        now = getattr(table, name)
        assert torch.equal(getattr(average.senses, name)[split], now[split])
    assert not torch.equal(average.senses.vectors[others], table.vectors[others])
    assert torch.equal(average.statistics.usage, statistics.usage)
    if fp32:
        assert torch.equal(training.ema.fp32_params["decoder.head.senses.vectors"][moved], table.vectors[moved])


def test_average_that_is_updated_seldom_follows_moves(pairs: Path) -> None:
    options = "--kerbs-moved-vector split --store-ema --ema-decay 0.9 --ema-update-freq 3"
    run = make(pairs, f"{OFTEN} {options}")
    training = trainer(run)
    table, _ = parts_of(run)
    training.ema  # noqa: B018
    before = table.sense_to_word.clone()
    update(training, run, 1)
    update(training, run, 2)
    moved = (table.sense_to_word != before).nonzero().flatten()
    average = training.ema.get_model().decoder.head.senses
    assert not torch.equal(average.vectors[moved], table.vectors[moved])
    update(training, run, 3)
    assert torch.equal(average.vectors[moved], table.vectors[moved])
    assert torch.equal(average.sense_to_word, table.sense_to_word)


def test_a_worker_that_ran_out_of_memory_counts_nothing(pairs: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = make(pairs, OFTEN)
    training = trainer(run)
    _, statistics = parts_of(run)
    loss, *_ = run.criterion(run.model.train(), batch(run))
    summed: list[Any] = []
    statistics.update(summed.append)  # forward failed: nothing was counted, but the others wait for the sum
    assert len(summed) == 1
    assert statistics.in_use
    loss.backward()
    training.zero_grad()  # backward failed: what was counted goes with the gradients
    for number in range(1, 5):  # with two events
        run.model.decoder.update_hook.after_update(run.model.decoder, training.optimizer, number)
    assert not statistics.tokens.any()
    assert int(statistics.moves) == 0
    (warning,) = (r.message for r in caplog.records if "no senses moved" in r.message)
    assert warning.startswith("no senses moved after update 2: there are no statistics since the last event")


def test_a_model_is_built_without_the_strategy_it_was_trained_with(pairs: Path) -> None:
    run = make(pairs, f"{OFTEN} --kerbs-strategy mine")
    assert run.criterion(run.model.eval(), batch(run))[0] > 0
    with pytest.raises(ValueError, match="--kerbs-strategy mine: there are idle, loss, paper, released"):
        update(trainer(run), run, 1)


def test_stock_criterion_trains_and_says_that_senses_stay(pairs: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = prepare(pairs, "lstm", f"--arch kerbs_lstm --criterion cross_entropy --optimizer adam --lr 0.01 {OFTEN}")
    training = trainer(run)
    before = parts_of(run)[0].sense_to_word.clone()
    with caplog.at_level(logging.WARNING):
        for number in (1, 2, 3):
            update(training, run, number)
    assert torch.equal(parts_of(run)[0].sense_to_word, before)
    (warning,) = (r.message for r in caplog.records if "senses do not move" in r.message)
    assert "--criterion kerbs_cross_entropy" in warning


@pytest.mark.parametrize("kernel", ["dot", "released"])
def test_other_kernels_move_too(pairs: Path, kernel: str) -> None:
    run = prepare(
        pairs,
        "lstm",
        f"--arch kerbs_lstm --criterion kerbs_cross_entropy --optimizer adam --lr 0.01 --kerbs-kernel {kernel} {OFTEN}",
    )
    training = trainer(run)
    before = parts_of(run)[0].sense_to_word.clone()
    for number in (1, 2):
        update(training, run, number)
    assert not torch.equal(parts_of(run)[0].sense_to_word, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kerbs-reallocate-every -1", "--kerbs-reallocate-every -1: must be a number of updates, or 0 for never"),
        ("--kerbs-reallocate-after -1", "--kerbs-reallocate-after -1: must be a number of updates"),
        ("--kerbs-reallocate-until 10", "until 10: must not be before --kerbs-reallocate-after 1000"),
        ("--kerbs-reallocate-until -1 --kerbs-reallocate-after 0", "until -1: must not be before"),
        ("--kerbs-init random --kerbs-strategy loss --kerbs-power -1", "the power of the count is -1: it must be"),
        ("--kerbs-decay 0", "the decay β of the statistics is 0: it must lie between 0 and 1"),
        ("--kerbs-decay 1", "the decay β of the statistics is 1"),
        ("--kerbs-threshold 0.5", "--kerbs-threshold 0.5: log P is never above 0"),
        ("--kerbs-threshold nan", "--kerbs-threshold nan: log P is never above 0"),
        (
            "--kerbs-reallocate-every 0 --kerbs-threshold -5",
            "--kerbs-threshold has no effect with --kerbs-reallocate-every 0: leave it out",
        ),
        (
            "--kerbs-strategy released --kerbs-moved-vector split",
            "--kerbs-moved-vector has no effect with --kerbs-strategy released",
        ),
    ],
)
def test_mistakes_are_explained(pairs: Path, options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(pairs, options)


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        ("--kerbs-decay 0.1", "--kerbs-decay 0.2", "statistics were made with the decay 0.1, not 0.2"),
        ("", "--kerbs-min-senses 2", "has a word with 1 of at least 2 senses"),
        ("", "--kerbs-max-senses 3", "has a word with 4 senses, the model allows 3"),
        ("", "--kerbs-bias zero", "the checkpoint has no bias for each sense, the model has one"),
    ],
)
def test_options_that_contradict_the_checkpoint(pairs: Path, saved: str, loaded: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(pairs, loaded).model.load_state_dict(make(pairs, saved).model.state_dict())
