"""Python without its asserts (``python -O``) gives the same: none decides anything."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Networks of plain weights and of computed ones (spectral and weight norm, old and new): every scorer, plans, crops.
RESULTS = """
import json, sys, warnings
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm
import precrop
from precrop.scoring import SCORERS

warnings.simplefilter("ignore")

def network(norm):
    torch.manual_seed(0)
    return nn.Sequential(
        norm(nn.Conv2d(3, 16, 3, padding=1)), nn.BatchNorm2d(16), nn.ReLU(),
        norm(nn.Conv2d(16, 24, 3, groups=4)), nn.PixelShuffle(2), nn.ReLU(),
        nn.Conv2d(6, 12, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), norm(nn.Linear(12, 5)),
    )

torch.manual_seed(1)
data = [(torch.randn(10, 3, 8, 8), torch.arange(10) % 5) for _ in range(3)]
norms = {
    "none": lambda layer: layer,
    "spectral": spectral_norm,
    "weight": weight_norm,
    "parametrized spectral": parametrizations.spectral_norm,
    "parametrized weight": parametrizations.weight_norm,
}
found = {"optimized": not __debug__}
for name, norm in norms.items():
    for scorer in SCORERS:
        found[f"{name}: {scorer}"] = dict(
            precrop.score(network(norm), scorer, 0.4, data=data, input_shape=(3, 8, 8))
        )
    plan = precrop.plan(network(norm), 1.0, input_shape=(3, 8, 8))
    found[f"{name}: whole"] = plan.to_json()
for budget in ({"ratio": 0.5}, {"params": 0.5}, {"params": 0.6, "macs": 0.5}):
    for scorer in ("synexp", "uniform", "snip"):
        plan = precrop.plan(network(norms["none"]), **budget, scorer=scorer, data=data, input_shape=(3, 8, 8))
        small = precrop.apply(network(norms["none"]), plan)
        found[f"{budget}, {scorer}"] = [plan.to_json(), [list(p.shape) for p in small.parameters()]]
for wrong in ({"ratio": 2}, {"params": 0.5, "scorer": "x"}, {"ratio": 0.5, "ignore": ["x"]}, {"macs": 0.01}):
    try:
        precrop.plan(network(norms["none"]), input_shape=(3, 8, 8), **wrong)
    except precrop.PrecropError as error:
        found[str(wrong)] = str(error)
json.dump(found, sys.stdout)
"""


def test_results_are_the_same_without_asserts():
    import json

    both = []
    for flags in ([], ["-O"]):
        result = subprocess.run(
            [sys.executable, *flags, "-c", RESULTS],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert result.returncode == 0, result.stderr
        both.append(json.loads(result.stdout))
    plain, optimized = both
    assert (plain.pop("optimized"), optimized.pop("optimized")) == (False, True)
    assert len(plain) > 80
    assert plain == optimized


def test_the_product_asserts_nothing():
    """An assert is gone under -O: what must hold is an error, what only a type checker asks for has a type."""
    found, read = [], 0
    for folder in ("precrop", "scoring", "cropping", "recipes", "export"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            read += 1
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "__debug__"):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert read > 100
    assert found == []
