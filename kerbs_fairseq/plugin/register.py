"""Patch fairseq, then register the models, the criterion and the options. Importing this module does it all."""

from kerbs_fairseq.plugin import fairseq_patches

applied = fairseq_patches.apply()

# These modules need the patched fairseq.
from kerbs_fairseq.plugin import criterion, generation, gru_lm, models  # noqa: E402, F401

models.register()
