"""What the signatures of public methods speak of can be imported from `tiered`, so callers can annotate their own."""

from __future__ import annotations

import ast
import inspect
import re
from types import ModuleType

import pytest

import tiered
import tiered.bulk
import tiered.open
import tiered.storage
import tiered.stored


@pytest.mark.parametrize("module", [tiered.storage, tiered.bulk, tiered.stored, tiered.open])
def test_all_names_in_public_signatures_can_be_imported(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    ours = {
        alias.name for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(("tiered.", "changelog.")) for alias in node.names
    }
    public = [
        function for kind in vars(module).values() if inspect.isclass(kind) and kind.__name__ in tiered.__all__
        for name, function in vars(kind).items() if inspect.isfunction(function) and not name.startswith("_")
    ] + [value for name, value in vars(module).items() if name in tiered.__all__ and inspect.isfunction(value)]
    annotations = [str(each) for function in public for each in inspect.get_annotations(function).values()]
    told = {word for annotation in annotations for word in re.findall(r"\w+", annotation)}
    assert not (told & ours) - set(tiered.__all__) - {"Runtime", "Telemetry"}
