"""Packaging of kerbs_fairseq: ranges only; the Makefile and requirements/ hold the pinned set that is tested."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
PACKAGE = (ROOT / "kerbs_fairseq" / "__init__.py").read_text(encoding="utf-8")
VERSION = PACKAGE.partition('__version__ = "')[2].partition('"')[0]  # the one place that has it
DEVELOPMENT = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")

EXTRAS = {
    # fairseq itself is missing on purpose: its metadata demands an omegaconf that today's pip refuses, so it is
    # installed by `pip install --no-deps fairseq==0.12.2`, and what it requires at run time stands here.
    "fairseq": ["hydra-core>=1.3.2,<1.4", "omegaconf>=2.3,<2.4", "regex", "bitarray", "tqdm", "sacrebleu>=2.3"],
    "recipes": ["sacrebleu>=2.3", "sacremoses>=0.1", "scipy>=1.7", "sentencepiece>=0.1.99", "rich>=12"],
    "report": ["matplotlib>=3.6", "scipy>=1.7", "rich>=12"],
    "dev": [line for line in DEVELOPMENT.splitlines() if line and not line.startswith("#")],
}

setup(
    name="kerbs-fairseq",
    version=VERSION,
    description="Kernelized Bayesian Softmax (KerBS) output layers for fairseq's LSTM and Transformer models",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["kerbs_fairseq", "kerbs_fairseq.*"]),
    package_data={"kerbs_fairseq": ["py.typed", "functional/backends/cpu.cpp", "evaluation/arms.txt", "report/page.*"]},
    python_requires=">=3.10",
    install_requires=["torch>=2.6,<3", "numpy>=1.21"],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "kerbs-corpus = kerbs_fairseq.corpora.command:main",
            "kerbs-evaluate = kerbs_fairseq.evaluation.command:main",
            "kerbs-table = kerbs_fairseq.evaluation.sweep:main",
            "kerbs-average = kerbs_fairseq.cli.average:main",
            "kerbs-convert = kerbs_fairseq.cli.convert:main",
            "kerbs-doctor = kerbs_fairseq.cli.doctor:main",
            "kerbs-export = kerbs_fairseq.cli.export:main",
            "kerbs-inspect = kerbs_fairseq.inspection.command:main",
            "kerbs-rate = kerbs_fairseq.human_evaluation.command:main",
            "kerbs-report = kerbs_fairseq.report.command:main",
            "kerbs-demo = kerbs_fairseq.demo.run:main",
            "kerbs-demo-corpus = kerbs_fairseq.demo.write:main",
        ]
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
