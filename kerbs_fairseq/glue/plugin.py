"""What importing the plugin does: mend fairseq, then register what we add to it."""

from kerbs_fairseq.glue import compat

applied = compat.apply()
