"""A seeded fault: a small mistake of the kind that a change of the code could make, and the tests that must see it.

A fault is put in by replacing one text, which must be in its file once. When code changes, its faults change with it:
``python tests/mutants --list`` says which texts are no longer found.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """``text`` in ``file`` of the package becomes ``replacement``; one of ``tests`` must fail."""

    area: str
    file: str
    name: str
    text: str
    replacement: str
    tests: str

    def path(self, project: Path) -> Path:
        """The file, in a copy of the project."""
        return project / "kerbs_fairseq" / self.file

    def count(self, project: Path) -> int:
        """How often the text is there."""
        path = self.path(project)
        return path.read_text(encoding="utf-8").count(self.text) if path.is_file() else 0


KERNEL, WORDS, LOSS = "functional/kernel.py", "functional/words.py", "functional/chunked_loss.py"
CPU, CONSTANTS, TYPES = "functional/backends/cpu.cpp", "functional/backends/base.py", "functional/types.py"
TARGETS, HALF, GPU = (f"functional/backends/{name}.py" for name in ("targets", "half_products", "gpu"))
EAGER, PATCHES = "functional/eager.py", "plugin/fairseq_patches.py"
TABLE, STATISTICS, LAYER = "modules/sense_table.py", "modules/statistics.py", "modules/layer.py"
POLICY, ROWS, MOVES = "allocation/policy.py", "allocation/parameter_rows.py", "allocation/reallocator.py"
HOOK, CRITERION, TIED = "plugin/update_hook.py", "plugin/criterion.py", "plugin/tied_input.py"
INPUT, START, DECODING = "functional/input_embedding.py", "functional/initialization.py", "functional/decoding.py"
AVERAGE, PAGE, DRAWING, MOVE_LOG = "cli/average.py", "report/page.py", "report/drawing.py", "plugin/move_log.py"
