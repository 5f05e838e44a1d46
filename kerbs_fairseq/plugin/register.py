"""What importing the plugin does: mend fairseq, then register what we add to it."""

from kerbs_fairseq.plugin import fairseq_patches as compat

applied = compat.apply()

# Registering is a side effect of importing, and works only on a fairseq that has been mended.
from kerbs_fairseq.plugin import criterion, generation, gru_lm, models, user_dirs  # noqa: E402, F401

models.register()
user_dirs.import_others()
