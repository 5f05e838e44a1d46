"""Log-probabilities are not normalized a second time, unless something has changed them."""

from pathlib import Path

import pytest
import torch
from inprocess import Run, batch, prepare

from kerbs_fairseq.plugin.log_probs import LogProbs, normalized


def made() -> torch.Tensor:
    with torch.no_grad():
        return LogProbs.of(torch.randn(2, 3, 7).log_softmax(-1))


def test_what_is_unchanged_is_returned_as_it_is() -> None:
    x = made()
    found = normalized(x)
    assert type(found) is torch.Tensor
    assert found.data_ptr() == x.data_ptr()
    last = normalized(x[:, -1:, :])  # of the generator, which then divides by the temperature 1
    assert last is not None
    assert torch.equal(last, found[:, -1:, :])
    assert normalized(x[:, -1:, :].div_(1.0)) is not None


def test_what_is_changed_or_made_with_gradients_is_not() -> None:
    changed, divided = made(), made()
    changed[0, 0, 0] = -1.0
    divided.div_(2.0)
    scores = torch.randn(2, 7, requires_grad=True).log_softmax(-1)
    for x in (changed, divided, made() + 1, made().clone(), LogProbs.of(scores), scores.detach()):
        assert normalized(x) is None


@pytest.fixture
def run(pairs: Path) -> Run:
    run = prepare(pairs, "transformer", "--arch kerbs_transformer --criterion kerbs_cross_entropy")
    run.model.eval()
    return run


def test_a_model_skips_the_second_log_softmax(run: Run) -> None:
    with torch.no_grad():
        output = run.model(**batch(run)["net_input"])
        probs = run.model.get_normalized_probs(output, log_probs=True)
        assert probs.data_ptr() == output[0].data_ptr()
        output[0][..., 5] += 3.0  # as a penalty would
        again = run.model.get_normalized_probs(output, log_probs=True)
    total = again.exp().sum(-1)
    torch.testing.assert_close(total, torch.ones_like(total))
    assert float(probs.exp().sum(-1).max()) > 1  # of the scores that were changed in place
