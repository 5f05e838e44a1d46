"""The shortcut of configs.py gives what fairseq gives."""

import configs
import pytest
from fairseq import options
from fairseq.dataclass import utils
from inprocess import SMALL

KERBS = "--criterion kerbs_cross_entropy --optimizer adam --lr 0.01,0.02 --seed 5"


@pytest.mark.parametrize(
    "command",
    [
        f"--task translation -s de --arch kerbs_lstm {KERBS} --kerbs-senses 2 {SMALL['lstm']}",
        f"--task translation --arch kerbs_transformer {KERBS} --share-all-embeddings {SMALL['transformer']}",
        f"--task language_modeling --arch kerbs_transformer_lm_gpt {KERBS} --kerbs-move-log here",
        "--task language_modeling --arch mos_gru_lm --criterion cross_entropy --optimizer nag --lr-scheduler fixed",
    ],
)
def test_configurations_are_those_of_fairseq(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    args = options.parse_args_and_arch(options.get_training_parser(), ["data", *command.split()])
    assert utils.compose is configs.compose
    first, second = (utils.convert_namespace_to_omegaconf(args) for _ in range(2))
    monkeypatch.setattr(utils, "compose", configs.stock_compose)
    expected = utils.convert_namespace_to_omegaconf(args)
    assert first == second == expected
    assert repr(first) == repr(expected)
    assert first.common is not second.common
