"""Which code that only a run folder names may be imported."""

from dataclasses import dataclass
from pathlib import Path

from fedwmsam.errors import InputError, printable


@dataclass(frozen=True)
class Trust:
    """What the user lets a run folder import: nothing, the model they repeat, or all it names.

    A run folder may be a stranger's, and importing a module runs its code.
    """

    model: str | None = None
    """The model that the user has named again, as "package.module:function"."""
    everything: bool = False

    def check_model(self, folder: Path, name: object) -> None:
        """Raise InputError if the run has another model than the user's, or an untrusted one."""
        if self.model is not None and self.model != name:
            raise InputError(f"The model of {folder} is {printable(name)!r}, not {self.model!r}.")
        if ":" in str(name) and self.model is None and not self.everything:
            raise InputError(
                f"{folder} names the model {printable(name)!r}, which would be imported and run: "
                f"if you know it, repeat it (--model {printable(name)}) or give --trust; "
                "in Python pass model= or trust=True."
            )


UNTRUSTED = Trust()
"""Import nothing that only a run folder names."""
