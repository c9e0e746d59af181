"""Kinds of networks on which channel pruning is known to fail, crop the wrong thing or change nothing silently.

Each is cropped to half its parameters, to its least widths and to widths drawn at random, and compared with the
network that its class builds by hand at those widths; every width that can vary does, and one that is
rightly fixed is reported with its layer and source line. `HAND_BUILT` in ``nets.py`` has more of them, which
``test_trace.py`` crops; the others are here.

==== ============================================== =====================================================
kind network                                        where
==== ============================================== =====================================================
1    channel shuffle in plain views                 ``test_trace.py``: ``Shuffle``
2    ``nn.ChannelShuffle``                          here
3    chunk, convolve, concatenate, shuffle          ``test_trace.py``: ``ShuffleUnit``
4    a list of halves that grows                    here
5    split sizes, as numbers and as shares          here; ``test_trace.py``: ``Splits``
6    a slice of fixed length                        here; ``test_trace.py``: ``Slice``
7    flattened map into a linear layer              ``test_trace.py``: ``Flatten``
8    the same by ``view`` in the forward            here
9    depthwise with a multiplier                    ``test_trace.py``: ``Depthwise``
10   grouped convolutions at ratio 0.3              here; ``test_trace.py``: ``Grouped``
11   one output channel                             here
12   squeeze-and-excitation by views                ``test_trace.py``: ``Gate``
13   a convolution over channels                    here
14   LayerScale                                     ``test_trace.py``: ``LayerScale``
15   ``F.conv2d`` with a bare weight                ``test_trace.py``: ``BareWeight``
16   a layer applied twice; one head, two scales    ``test_trace.py``: ``Twice``; here
17   pixel shuffle                                  ``test_trace.py``: ``Pixels``
18   transposed convolution                         ``test_trace.py``: ``Transposed``; here: U-Net
19   a vector viewed as a map                       here
20   GroupNorm, PReLU, no affine, no norm           ``test_trace.py``: ``Norms``; here
21   weight standardization                         ``test_trace.py``: ``Standardized``
22   pre-activation                                 here
23   channels last, LayerNorm, MLP                  ``test_trace.py``: ``ChannelsLast``
24   image to image                                 here
25   unused modules; no gradients                   here; ``test_shrink.py``
26   sizes in factory calls, in ``range``           ``test_trace.py``: ``Zeros``, ``Counts``
27   cropped twice                                  here (each network); ``test_trace.py``
28   wrapped networks                               ``test_api.py``
29   narrow layers and tiny ratios                  here
30   a sweep of ratios                              here; ``test_allocate.py``
31   timm's numbers                                 ``test_kinds_timm.py``
32   saved and loaded in a new process              ``tests/precrop/test_checkpoint.py``
==== ============================================== =====================================================
"""

import re

import kinds
import kinds_gates
import kinds_images
import kinds_layouts
import kinds_paths
import kinds_sizes
import kinds_weights
import pytest
import torch
from handbuilt import assert_kind, assert_trains
from nets import HAND_BUILT, Chain, Dense, Grouped, Residual, ShuffleUnit

from precrop import PrecropError, inspect, precrop
from precrop.crop_plan import Budget
from precrop.cropping.allocate import allocate
from precrop.errors import BudgetError

MODULES = (kinds, kinds_gates, kinds_images, kinds_layouts, kinds_paths, kinds_sizes, kinds_weights)
SHAPE = (3, 8, 8)


def marked(kind):
    return pytest.param(kind, id=f"kind {kind.title}")


@pytest.mark.parametrize("kind", [marked(kind) for module in MODULES for kind in module.KINDS])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_kind(kind):
    assert_kind(kind)


@pytest.mark.parametrize("b", [16, 32], ids="10 groups 16-{}".format)
def test_grouped_convolutions_at_a_ratio_that_no_group_divides(b):
    small = precrop(Grouped(a=16, b=b), params=0.3, input_shape=SHAPE)
    widths = small.stem[0].out_channels, small.grouped[0].out_channels
    assert all(w % 4 == 0 for w in widths)
    by_hand = Grouped(*widths)
    assert repr(small) == repr(by_hand)
    assert assert_trains(small, torch.randn(2, *SHAPE)) == {name for name, _ in by_hand.named_parameters()}


NARROW = {
    "29 chain": lambda: Chain(3, 8),
    "29 residual": lambda: Residual(4, 5),
    "29 dense": lambda: Dense(3, 4, 5),
    "29 shuffle": lambda: ShuffleUnit(3, 4),
    "29 grouped": lambda: Grouped(8, 8),
}


@pytest.mark.parametrize("build", NARROW.values(), ids=NARROW)
def test_no_layer_of_a_narrow_network_reaches_zero_channels(build):
    """At ratio 0.05 these are out of reach; the error says what is not, and that leaves every layer a channel."""
    with pytest.raises(BudgetError, match=r"params 0\.05 was asked") as caught:
        precrop(build(), params=0.05, input_shape=SHAPE)
    least = float(re.search(r"smallest reachable is (\d\.\d+)", str(caught.value))[1])
    small = precrop(build(), params=least + 1e-4, input_shape=SHAPE)
    assert small.crop_plan.params_ratio == pytest.approx(least, rel=1e-3)
    assert all(0 not in p.shape for p in small.parameters())
    assert_trains(small, torch.randn(2, *SHAPE))


@pytest.mark.parametrize("net", HAND_BUILT, ids=lambda net: f"30 {net.__name__}")
def test_a_larger_ratio_never_gives_a_smaller_model(net):
    graph = inspect(net(), input_shape=SHAPE)
    sizes = {}
    for ratio in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1):
        try:
            sizes[ratio] = graph.size(allocate(graph, Budget(params=ratio))[0]).params
        except BudgetError:
            break
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)
    assert len(set(sizes.values())) > 3


@pytest.mark.parametrize(
    ("net", "line"),
    [
        # At equal widths the projection would be skipped: another network than the one that was traced.
        (kinds_paths.OptionalShortcut, r"if x\.shape != y\.shape"),
    ],
)
def test_where_nothing_can_vary_the_line_is_named(net, line):
    graph = inspect(net(), input_shape=SHAPE)
    assert graph.widths == ()
    assert any(re.search(line, f.reason) for f in graph.fixed)
    with pytest.raises(PrecropError, match="no layer that can be cropped"):
        precrop(net(), 0.5, input_shape=SHAPE)
