"""The fairseq side, thin: what is registered with fairseq, and the repairs that fairseq itself needs.

Importing this package activates the plugin. Where that cannot be, ``fault`` says why, and what to install.
"""

from typing import Optional

from kerbs_fairseq import requirements
from kerbs_fairseq.plugin import fairseq_patches

fault: Optional[str] = None  # while fairseq is being imported
applied: list[str] = []  # the names of the patches in force

fault = fairseq_patches.skip_fault() or requirements.fault()

if fault is None:
    from kerbs_fairseq.plugin import register

    applied = register.applied
