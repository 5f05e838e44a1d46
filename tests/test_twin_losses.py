"""Losses and probabilities of twins: those of the softmax, of fairseq's criteria, and of forced decoding."""

import math

import pytest
import torch
from fairseq import metrics
from inprocess import (
    FAMILIES,
    LANGUAGE_MODELS,
    batch,
    decided,
    log_probs,
    prepare,
    search,
)

from kerbs_fairseq.functional import chunked_loss
from kerbs_fairseq.plugin.decoders import features_of


@pytest.mark.parametrize("base", FAMILIES)
def test_one_sense_and_the_inner_product_are_the_softmax(data_for, base: str) -> None:
    arch = FAMILIES[base]
    stock = decided(prepare(data_for(base), base, f"--arch {arch} --criterion cross_entropy"))
    options = "--kerbs-senses 1 --kerbs-kernel dot"
    twin = prepare(data_for(base), base, f"--arch kerbs_{arch} --criterion kerbs_cross_entropy {options}", seed=2)
    state = {k: v for k, v in stock.model.state_dict().items() if k in twin.model.state_dict()}
    decoder = stock.model.decoder
    name = next((n for n in ("output_projection", "fc_out") if getattr(decoder, n, None) is not None), "embed_tokens")
    layer = getattr(decoder, name)
    biased = getattr(layer, "bias", None) is not None
    assert biased == (base in ("lstm", "lstm_lm"))
    if biased:
        state["decoder.head.senses.bias_raw"] = layer.bias.detach().clone()
    state["decoder.head.senses.vectors"] = layer.weight.detach().clone()
    state["decoder.head.senses.sense_to_word"] = torch.arange(len(layer.weight))
    state["decoder.head.senses.kernel_id"] = twin.model.state_dict()["decoder.head.senses.kernel_id"]
    twin.model.load_state_dict(state)
    sample = batch(stock)
    losses, gradients = [], []
    for run in (stock, twin):
        run.model.train()
        loss, _, _ = run.criterion(run.model, sample)
        loss.backward()
        losses.append(loss)
        gradients.append({n: p.grad for n, p in run.model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(losses[0], losses[1])
    if biased:
        torch.testing.assert_close(gradients[1].pop("decoder.head.senses.bias_raw"), layer.bias.grad)
    ours = gradients[1].pop("decoder.head.senses.vectors")
    shared = {n for n, p in stock.model.named_parameters(remove_duplicate=False) if p is layer.weight}
    for key in gradients[1]:  # a shared table has both gradients, that of the input and that of the output
        both = gradients[1][key] + ours if key in shared else gradients[1][key]
        torch.testing.assert_close(both, gradients[0][key], atol=1e-4, rtol=1e-4, msg=key)
    if not shared & gradients[1].keys():
        torch.testing.assert_close(ours, layer.weight.grad, atol=1e-4, rtol=1e-4)
    for (tokens, score), (twin_tokens, twin_score) in zip(
        (h for s in search(stock, sample) for h in s), (h for s in search(twin, sample) for h in s)
    ):
        assert tokens == twin_tokens
        assert score == pytest.approx(twin_score, abs=1e-5)


@pytest.mark.parametrize("base", FAMILIES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_stock_criteria_give_the_same_loss(data_for, base: str, smoothing: float) -> None:
    ours = prepare(
        data_for(base),
        base,
        f"--arch kerbs_{FAMILIES[base]} --criterion kerbs_cross_entropy --label-smoothing {smoothing}",
    )
    name = "label_smoothed_cross_entropy" if smoothing else "cross_entropy"
    option = f"--label-smoothing {smoothing}" if smoothing else ""
    theirs = prepare(data_for(base), base, f"--arch kerbs_{FAMILIES[base]} --criterion {name} {option}")
    sample = batch(ours)
    results = []
    for run in (ours, theirs):
        ours.model.zero_grad()
        loss, size, output = run.criterion(ours.model, sample)
        loss.backward()
        gradients = {n: p.grad.clone() for n, p in ours.model.named_parameters() if p.grad is not None}
        results.append((loss, size, float(output.get("nll_loss", output["loss"])), gradients))
    (loss, size, nll, gradients), (their_loss, their_size, their_nll, their_gradients) = results
    torch.testing.assert_close(loss, their_loss)
    assert size == their_size
    assert nll == pytest.approx(their_nll, rel=1e-5)
    assert gradients.keys() == their_gradients.keys()
    for key in gradients:
        torch.testing.assert_close(gradients[key], their_gradients[key], atol=1e-4, rtol=1e-4, msg=key)


def test_reference_option_gives_the_same_loss(data_for) -> None:
    command = "--arch kerbs_lstm --criterion kerbs_cross_entropy --label-smoothing 0.1"
    fast = prepare(data_for("lstm"), "lstm", command)
    plain = prepare(data_for("lstm"), "lstm", f"{command} --kerbs-reference")
    assert plain.model.decoder.head.reference
    sample = batch(fast)
    losses = [run.criterion(run.model, sample)[0] for run in (fast, plain)]
    torch.testing.assert_close(*losses)


def test_sentence_avg_counts_sentences(data_for) -> None:
    command = "--arch kerbs_lstm --criterion kerbs_cross_entropy"
    by_token = prepare(data_for("lstm"), "lstm", command)
    by_sentence = prepare(data_for("lstm"), "lstm", f"{command} --sentence-avg")
    sample = batch(by_token)
    assert by_token.criterion(by_token.model, sample)[1] == sample["ntokens"] > 6
    assert by_sentence.criterion(by_sentence.model, sample)[1] == 6


def test_losses_are_logged_as_the_stock_criterion_logs_them(data_for) -> None:
    # in bits: per token, but for the loss that is trained with --sentence-avg
    outputs = [
        {"loss": torch.tensor(40.0 * n), "nll_loss": torch.tensor(30.0 * n), "ntokens": 9, "sample_size": 4 * n}
        for n in (1, 2)
    ]
    logged = []
    for name in ("kerbs_cross_entropy", "label_smoothed_cross_entropy"):
        run = prepare(data_for("lstm"), "lstm", f"--arch kerbs_lstm --criterion {name} --label-smoothing 0.1")
        with metrics.aggregate(new_root=True) as values:
            type(run.criterion).reduce_metrics(outputs)
        logged.append({key: float(values.get_smoothed_values()[key]) for key in ("loss", "nll_loss", "ppl")})
    assert logged[0] == logged[1]
    assert logged[0]["nll_loss"] == pytest.approx(90 / 18 / math.log(2), abs=1e-3)


@pytest.mark.parametrize("base", FAMILIES)
def test_word_probabilities_are_sums_over_senses(data_for, base: str) -> None:
    run = prepare(data_for(base), base, f"--arch kerbs_{FAMILIES[base]} --kerbs-theta-init 0.7")
    run.model.eval()
    sample = batch(run)
    with torch.no_grad(), features_of(run.model.decoder):
        h = run.model(**sample["net_input"])[0].double()
    table = run.model.decoder.head.senses
    w, theta, b = (x.detach().double() for x in (table.vectors, table.theta, table.bias))
    cosine = torch.nn.functional.cosine_similarity(h.unsqueeze(2), w, dim=-1)
    a = -theta / (2 * (torch.exp(-theta) + theta - 1))
    K = h.norm(dim=-1, keepdim=True) * w.norm(dim=-1) * a * (torch.exp(-theta * cosine) - 1) + b
    P = torch.softmax(K, -1)
    words = torch.zeros(*P.shape[:2], table.n_words, dtype=P.dtype).index_add_(2, table.sense_to_word, P)
    torch.testing.assert_close(log_probs(run, sample).double().exp(), words, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("base", ["lstm", "transformer_align", *LANGUAGE_MODELS])
def test_beam_scores_are_those_of_forced_decoding(data_for, base: str) -> None:
    run = prepare(data_for(base), base, f"--arch kerbs_{base} --kerbs-theta-init 0.7")
    sample = batch(run)
    beams = search(run, sample, beam=5)
    eos = run.task.target_dictionary.eos()
    for sentence, hypotheses in enumerate(beams):
        source = sample["net_input"]["src_tokens"][sentence : sentence + 1]
        source = source[source != run.task.source_dictionary.pad()].unsqueeze(0)
        for tokens, score in hypotheses:
            if base in LANGUAGE_MODELS:
                net_input = {"src_tokens": torch.tensor([[eos, *tokens[:-1]]])}
            else:
                net_input = {
                    "src_tokens": source,
                    "src_lengths": torch.tensor([source.size(1)]),
                    "prev_output_tokens": torch.tensor([[eos, *tokens[:-1]]]),
                }
            with torch.no_grad():
                forced = log_probs(run, {"net_input": net_input})[0]
            total = forced.gather(1, torch.tensor(tokens).unsqueeze(1)).sum()
            assert float(total) / len(tokens) == pytest.approx(score, abs=1e-5)


def test_validation_computes_no_gradients(data_for, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []
    over_chunks = chunked_loss.over_chunks
    monkeypatch.setattr(chunked_loss, "over_chunks", lambda *args: (wanted.append(args[-1]), over_chunks(*args))[1])
    run = prepare(data_for("lstm"), "lstm", "--arch kerbs_lstm --criterion kerbs_cross_entropy")
    run.criterion(run.model, batch(run))
    with torch.no_grad():
        run.criterion(run.model, batch(run))
    assert wanted == [True, False]
