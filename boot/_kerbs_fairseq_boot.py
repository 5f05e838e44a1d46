"""Allow fairseq 0.12.2 to be imported on Python 3.11 and newer.

Since Python 3.11 a dataclass refuses a default value that has no hash, and the configuration classes of fairseq (and
of hydra-core 1.0) have instances of other dataclasses as defaults. ``kerbs_fairseq.pth`` imports this module whenever
Python starts. It imports nothing but sys. At the first import of fairseq or hydra it removes its finder, and from then
on gives the dataclasses of those two packages, and of no other, the identity hash that every ordinary object has.

Without ``--user-dir kerbs_fairseq`` fairseq's commands know none of our models, and with current torch cannot read a
checkpoint. Their error messages do not say why, so this module does. Of several ``--user-dir`` fairseq takes the last
and drops the others; ours is put last, and then imports the others.
"""

import sys

PACKAGES = ("fairseq", "hydra")
OURS = "kerbs_fairseq"
FORGOTTEN = "add --user-dir kerbs_fairseq to the command"


class Watch:
    """A finder that finds nothing: it only detects that one of PACKAGES is about to be imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]  # typing is slow to import
        """Return None, so that the import system asks the next finder."""
        if name in PACKAGES:
            # a new list: removing an item from the one that is being iterated over would skip the next finder
            sys.meta_path = [finder for finder in sys.meta_path if finder is not Watch]
            if sys.version_info >= (3, 11):
                give_identity_hash()
            if name_of_command().startswith("fairseq-"):
                folders = put_our_user_dir_last()
                if OURS not in folders:
                    remind_of_user_dir(folders)
        return None  # noqa: PLR1711  (the answer is the point)


def give_identity_hash():  # type: ignore[no-untyped-def]
    """Wrap the function behind ``@dataclass``, for the classes of PACKAGES only."""
    import dataclasses

    process = dataclasses._process_class  # type: ignore[attr-defined]

    def _process_class(cls, *args, **kwargs):  # type: ignore[no-untyped-def]
        made = process(cls, *args, **kwargs)
        if made.__hash__ is None and made.__module__.partition(".")[0] in PACKAGES:
            made.__hash__ = object.__hash__
        return made

    dataclasses._process_class = _process_class  # type: ignore[attr-defined]


def name_of_command():  # type: ignore[no-untyped-def]
    """Return the name of the main program, such as fairseq-train."""
    return (sys.argv[:1] or [""])[0].replace("\\", "/").rpartition("/")[2].removesuffix(".exe")


def put_our_user_dir_last():  # type: ignore[no-untyped-def]
    """Make ours the last ``--user-dir`` of the command line, if it is one; return the names of all the folders."""
    places, folders = [], []
    for i, argument in enumerate(sys.argv):
        if sys.argv[i - 1] == "--user-dir" and i > 1:
            places.append((i, ""))
            folders.append(argument)
        elif argument.startswith("--user-dir="):
            places.append((i, "--user-dir="))
            folders.append(argument.partition("=")[2])
    folders.sort(key=lambda folder: folder_name(folder) == OURS)  # the others stay in their order
    for (i, option), folder in zip(places, folders):
        sys.argv[i] = option + folder
    return [folder_name(folder) for folder in folders]


def folder_name(path):  # type: ignore[no-untyped-def]
    """Return the last part of a path."""
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


def remind_of_user_dir(folders):  # type: ignore[no-untyped-def]
    """Handle a command without our ``--user-dir``: end it if it names a model or option of ours, else explain errors.

    One of ``folders`` may import us: then the command goes on, and the reason is printed at its end if none did.
    """
    before = ""
    for argument in sys.argv[1:]:
        option, _, value = argument.partition("=") if argument.startswith("--") else (before, "", argument)
        ours = value.startswith(("kerbs_", "mos_")) or value == "gru_lm"
        if option.startswith(("--kerbs-", "--mos-")) or (option in ("--arch", "-a", "--criterion") and ours):
            said = f"{name_of_command()}: {argument} is of kerbs_fairseq: {FORGOTTEN}"
            if not folders:
                sys.exit(said)
            import atexit

            atexit.register(say_at_the_end, said)
            break
        before = argument
    hook = sys.excepthook

    def explain(kind, error, traceback):  # type: ignore[no-untyped-def]
        text = str(error)
        if OURS not in sys.modules and ("Weights only load failed" in text or "kerbs_" in text):
            print(
                f"{name_of_command()}: the checkpoint cannot be read without kerbs_fairseq: {FORGOTTEN}",
                file=sys.stderr,
            )
        else:
            hook(kind, error, traceback)

    sys.excepthook = explain


def say_at_the_end(line):  # type: ignore[no-untyped-def]
    """Print ``line`` unless kerbs_fairseq has been imported."""
    if OURS not in sys.modules:
        print(line, file=sys.stderr)


if not any(name in sys.modules for name in PACKAGES):
    sys.meta_path.insert(0, Watch)
