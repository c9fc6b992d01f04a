"""Which code that only a run folder names may be imported."""

from dataclasses import dataclass
from pathlib import Path

from fedwmsam.errors import InputError, printable
from fedwmsam.settings.method_table import allow_import, is_path


@dataclass(frozen=True)
class Trust:
    """What the user lets a run folder import: nothing, what they repeat, or all it names.

    A run folder may be a stranger's, and importing a module runs its code.
    """

    model: str | None = None
    """The model that the user has named again, as "package.module:function"."""
    everything: bool = False
    method: str | None = None
    """The method that the user has named again, as "package.module:Class"."""

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

    def check_method(self, folder: Path, name: object) -> None:
        """Allow the import of the run's method, or raise InputError if it is not trusted.

        Methods of this library and of installed packages need no trust.
        """
        if not isinstance(name, str) or not is_path(name):
            return
        if name != self.method and not self.everything:
            raise InputError(
                f"{folder} names the method {printable(name)!r}, which would be imported and run: "
                f"if you know it, repeat it (--method {printable(name)}) or give --trust."
            )
        allow_import(name)


UNTRUSTED = Trust()
"""Import nothing that only a run folder names."""
