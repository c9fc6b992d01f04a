"""Python files outside any package, imported as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_module(path: Path) -> ModuleType:
    """Execute the file and return it as a module named after it."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # dataclasses look their module up
    specification.loader.exec_module(module)
    return module
