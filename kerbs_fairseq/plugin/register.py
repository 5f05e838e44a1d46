"""What activating the plugin does: repair fairseq, then register what we add to it. All by being imported."""

from kerbs_fairseq.plugin import fairseq_patches

applied = fairseq_patches.apply()

# Works only on a fairseq that has been repaired.
from kerbs_fairseq.plugin import criterion, generation, gru_lm, models  # noqa: E402, F401

models.register()
