"""docs/FILES.md is a list of what is tested: each test that it names is there, and each test here is named."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "FILES.md").read_text()


def functions_in(*names):
    trees = [ast.parse((HERE / name).read_text()) for name in names]
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_is_there():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named <= functions_in("test_files.py", "test_data_files.py", "test_plans.py")
    assert len(named) > 25
