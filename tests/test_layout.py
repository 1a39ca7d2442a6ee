"""What the layout promises beyond what import-linter checks."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = sorted((Path(__file__).parents[1] / "src" / "phalanx").rglob("*.py"))


def test_no_two_classes_have_the_same_name():
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.parent.name}/{path.name}")

    assert {name: found for name, found in places.items() if len(found) > 1} == {}
