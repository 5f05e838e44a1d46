"""kerbs_fairseq: fairseq decoders with a Kernelized Bayesian Softmax (KerBS) in place of the softmax.

``fairseq-train ... --user-dir kerbs_fairseq`` imports this package, and so does ``import kerbs_fairseq`` in a program:
both mend what is broken in the installed fairseq and register everything that the plugin adds.

Where fairseq cannot be used the reason is kept in ``plugin_fault``. The mathematics and the modules, which need torch
alone, stay importable all the same, and so does ``kerbs-doctor``.
"""

from kerbs_fairseq.runs import interrupts

interrupts.watch()

import sys  # noqa: E402

from kerbs_fairseq import requirements  # noqa: E402
from kerbs_fairseq.plugin import fairseq_patches as compat  # noqa: E402

__version__ = "0.2.0"

plugin_fault = compat.skip_fault() or requirements.fault()

if plugin_fault is None:
    from kerbs_fairseq.plugin import register as register  # registers by being imported
elif "fairseq" in sys.modules:  # fairseq is importing us, through --user-dir: going on would only fail later
    requirements.stop(plugin_fault)
else:
    requirements.warn(plugin_fault)
