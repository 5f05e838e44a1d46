"""The fairseq plugin: what is registered with fairseq, and the patches that fairseq itself needs.

Importing this package activates the plugin. If that is not possible, ``fault`` says why and what to install.
"""

from typing import Optional

from kerbs_fairseq import requirements
from kerbs_fairseq.plugin import fairseq_patches

fault: Optional[str] = None  # defined first: activation.py reads it while fairseq is being imported
applied: list[str] = []  # the names of the active patches

fault = fairseq_patches.skip_fault() or requirements.fault()

if fault is None:
    from kerbs_fairseq.plugin import register

    applied = register.applied
