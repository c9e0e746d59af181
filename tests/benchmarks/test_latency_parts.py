import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from precrop.export.backends import LayerTime

SHAPE = (3, 8, 8)
BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import latency_profile
    import latency_report
    import latency_variants

    yield latency_variants, latency_profile, latency_report
    for name in ("latency_variants", "latency_profile", "latency_report"):
        del sys.modules[name]


def net():
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(32, 4)).eval()


def test_mask_keeps_the_share_of_every_layer(parts):
    model = net()
    masked = parts[0].masked(model, SHAPE, 0.25)
    kept = {name: int((p != 0).sum()) for name, p in masked.model.named_parameters() if name.endswith("weight")}
    assert kept == {"0.weight": 108, "2.weight": 128, "5.weight": 32}
    assert masked.params == 108 + 16 + 128 + 32 + 32 + 4
    assert masked.macs == 108 * 64 + 128 * 64 + 32
    assert all((p != 0).all() for p in model.parameters())


def test_crop_that_cannot_be_made_says_why(parts):
    found = parts[0].cropped(net(), SHAPE, "params", 1e-6, "synexp", 0, "none")
    assert found.model is None
    assert "smallest reachable" in found.failure


def test_lost_time_adds_up(parts):
    variants, profiles, _ = parts
    model = net()
    dense = variants.Variant("dense", "macs", 1.0, "", model=model)
    crop = variants.cropped(model, SHAPE, "macs", 0.5, "synexp", 0, "none")
    times = {
        "dense": [LayerTime("a", "Conv", 4.0, "0"), LayerTime("b", "Conv", 2.0, "2"), LayerTime("c", "Reorder", 0.5)],
        crop.label: [LayerTime("a", "Conv", 3.5, "0"), LayerTime("b", "Conv", 0.5, "2"), LayerTime("d", "Reorder", 1)],
    }
    found = profiles.profile("net", "onnxruntime", 0.6, dense, crop, times)
    assert found.lost_ms == pytest.approx(5.0 - crop.plan.macs_ratio * 6.5)
    assert found.in_layers_ms + found.rest_ms == pytest.approx(found.lost_ms)
    rows = {row.name: row for row in crop.plan.layers}
    by_layer = {loss.layer: loss for loss in found.layers}
    assert by_layer["0"].lost_ms == pytest.approx(3.5 - 4.0 * rows["0"].macs_kept / rows["0"].macs_original)
    assert by_layer["(Reorder)"].lost_ms == pytest.approx(1 - 0.5 * crop.plan.macs_ratio)
    assert by_layer["0"].what == "3x3"
    assert by_layer["0"].widths.startswith("3→16 to 3→")


def test_torch_pruning_meets_the_macs_of_a_crop(parts):
    pytest.importorskip("torch_pruning")
    torch.manual_seed(0)
    model = net()
    wanted = parts[0].cropped(model, SHAPE, "macs", 0.5, "synexp", 0, "none").macs
    found = parts[0].torch_pruned(model, SHAPE, 0.5, wanted, 0)
    assert abs(found.macs - wanted) < 0.1 * wanted
    assert found.model[5].out_features == 4


def test_tables_have_a_cell_for_each_variant(parts):
    report = parts[2]
    rows = [
        report.Row("net", "onnxruntime", "dense", "macs", 1.0, "", "dense", 100, 1.0, 1000, 1.0, 2.0, 2.0, 1, 1, 1, 1),
        report.Row(
            "net", "onnxruntime", "precrop", "macs", 0.5, "", "crop", 50, 0.5, 500, 0.5, 1.1, 1.2, 1.8, 1.7, 1.9, 0.9
        ),
        report.Row("net", "onnxruntime", "peer", "macs", 0.5, "any", "peer, any", failure="raises ValueError: no"),
    ]
    summary = report.summary_table(rows).splitlines()
    assert summary[0] == "| network, share kept | precrop | peer, any |"
    assert summary[2] == "| net, macs 0.5 | 0.90 (1.80×) | raises ValueError |"
    assert "| crop | 0.500× | 0.500× | 1.10 | 1.80× (1.70–1.90) | 0.90 |" in report.full_table(rows)
    assert len(report.to_csv(rows).splitlines()) == 4


def test_kernels_are_named_for_a_person(parts):
    kind_of = parts[1].kind_of
    block = nn.Module()
    block.branch1, block.branch2 = nn.Sequential(), nn.Sequential(nn.Conv2d(8, 8, 1))  # as in a ShuffleNetV2
    assert kind_of(block, {"Concat": 1.0, "Transpose": 2.0}) == "Transpose, Concat"
    assert kind_of(nn.Conv2d(8, 8, (3, 1), groups=8), {"Conv": 1.0}) == "3x1 depthwise"
    assert kind_of(nn.Conv2d(8, 8, 3, groups=2), {"Conv": 1.0}) == "3x3 in 2 groups"
    assert kind_of(nn.Linear(8, 8), {"Gemm": 1.0}) == "Linear"
    assert kind_of(None, {"Reorder": 1.0}) == "Reorder"
    times = [
        LayerTime("a", "Split ref_f32", 1.0),
        LayerTime("b", "Split jit", 2.0),
        LayerTime("c", "Conv", 1.0, "stem"),
    ]
    assert parts[1].by_layer(times) == {"(Split)": {"Split": 3.0}, "stem": {"Conv": 1.0}}
