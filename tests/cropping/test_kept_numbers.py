"""Numbers that no traced forward reads follow the size that they count, or are said."""

import pytest
import timm
from nets import Head, cbr
from torch import nn

from precrop import inspect, precrop
from precrop.cropping.shrink import shrink

SHAPE = (3, 8, 8)


class Block(nn.Module):
    def __init__(self, c, w):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(c, w, 3, padding=1), nn.BatchNorm2d(w)
        self.dim, self.ends, self.by_name = w, (c, w), {"in": c, "out": w}
        self.stride, self.num_heads, self.eight = 2, w, [w, 2]

    def forward(self, x):
        return self.norm(self.conv(x)).relu()

    def merged(self):
        return nn.Conv2d(self.ends[0], self.dim, 3)


class Blocks(nn.Module):
    def __init__(self, a=16, b=24, c=40):
        super().__init__()
        self.one, self.two, self.three, self.head = Block(3, a), Block(a, b), Block(b, c), Head(c)

    def forward(self, x):
        return self.head(self.three(self.two(self.one(x))))


def test_a_number_follows_the_size_that_it_counts_in_every_module_of_its_class():
    small = precrop(Blocks(), 0.4, input_shape=SHAPE)
    for block in (small.one, small.two, small.three):
        c, w = block.conv.in_channels, block.conv.out_channels
        assert (block.dim, block.ends, block.by_name, block.eight) == (w, (c, w), {"in": c, "out": w}, [w, 2])
    assert small.two.dim < 24
    assert [b.num_heads for b in (small.one, small.two, small.three)] == [16, 24, 40], "a setting stays"
    assert not small.crop_plan.notes or "may count" not in " ".join(small.crop_plan.notes)


class Two(nn.Module):
    """Two widths of one size: the number may count either."""

    def __init__(self, a=16, b=16):
        super().__init__()
        self.a, self.b, self.head, self.planes = cbr(3, a), cbr(a, b), Head(b), a

    def forward(self, x):
        return self.head(self.b(self.a(x)))


def test_a_number_that_may_count_two_widths_stays_and_is_said():
    graph = inspect(Two(), input_shape=SHAPE)
    assert [(n.cls, n.attribute, n.value) for n in graph.unclear] == [("Two", "planes", 16)]
    small = precrop(Two(), 0.5, input_shape=SHAPE)
    assert small.planes == 16
    assert any("planes = 16" in note and "register_size_attributes(Two, 'planes')" in note for note in graph.notes)
    assert any("planes = 16" in note for note in small.crop_plan.notes)


@pytest.mark.parametrize(
    ("name", "cls", "attribute", "counted"),
    [
        ("repvit_m0_9", "RepVggDw", "dim", lambda m: m.conv.c.out_channels),
        ("dla34", "DlaTree", "root_dim", lambda m: m.root.conv.in_channels if m.levels == 1 else m.root_dim),
        ("tresnet_m", "TResNet", "inplanes", lambda m: m.head.fc.in_features),
        ("repghostnet_100", "RepGhostNet", "pool_dim", lambda m: m.conv_head.in_channels),
    ],
)
def test_timms_numbers(name, cls, attribute, counted):
    model = timm.create_model(name)
    graph = inspect(model)
    halves = {w.name: max(w.minimum, w.size // 2 // w.multiple * w.multiple) for w in graph.widths}
    pairs = zip(model.modules(), shrink(model, graph, halves).modules(), strict=True)
    found = [(m, s) for m, s in pairs if type(m).__name__ == cls]
    assert found
    assert all(getattr(new, attribute) == counted(new) for _, new in found)
    assert any(getattr(new, attribute) < getattr(old, attribute) for old, new in found)
