import math
import warnings

import initializations as rules
import pytest
import timm
import torch
import torchvision
from initializations import BIASES, KINDS, PATTERNS, WEIGHTS, Mixed, apply, expected, fault, values_of
from nets import LayerScale
from torch import nn

from precrop import PrecropWarning, precrop
from precrop.cropping.initialize import Initializer, layer_fans
from precrop.cropping.laws import Fans, Sample, explain, fans_of
from precrop.cropping.patterns import recut
from precrop.cropping.spread import spread_of
from precrop.cropping.trained import initialize_anew, looks_trained

SHAPE = (3, 16, 16)
init = nn.init
# Channels in and out of the layers of one network, in multiples of four; a crop has about half.
SIZES = ((3, 8), (8, 8), (8, 16), (16, 4), (4, 12))


def layers(kind, share=1.0):
    sizes = (tuple(4 * max(1, int(share * size)) for size in pair) for pair in SIZES)
    return nn.ModuleList(KINDS[kind](*pair) for pair in sizes)


def redraw(old, new):
    """Give the layers of ``new`` values by the rules of ``old``'s."""
    initializer = Initializer(old)
    for before, after in zip(old, new, strict=True):
        for leaf, parameter in before.named_parameters():
            shape = tuple(getattr(after, leaf).shape)
            drawn = initializer.draw(parameter, shape, layer_fans(after, {}))
            getattr(after, leaf).data = drawn
    return initializer


def pairs():
    """Every weight's rule with PyTorch's bias and with one other, each in turn."""
    for n, weight in enumerate((*WEIGHTS, *PATTERNS)):
        for bias in ("default", tuple(BIASES)[1 + n % (len(BIASES) - 1)]):
            yield weight, bias


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("weight", "bias"), list(pairs()))
def test_a_crop_is_drawn_like_a_fresh_network(kind, weight, bias):
    torch.manual_seed(0)
    new = layers(kind, 0.5)
    redraw(apply(layers(kind), weight, bias), new)
    fresh = expected(new, weight, bias)
    for leaf in ("weight", "bias"):
        assert not fault(values_of(new, leaf), [values_of(network, leaf) for network in fresh]), leaf


@pytest.mark.parametrize("leaf", ["weight", "bias"])
@pytest.mark.parametrize("factor", [1 / 1.4, 1.4])
@pytest.mark.parametrize(("weight", "bias"), [("default", "default"), ("xavier normal", "normal .01")])
def test_the_test_sees_a_variance_that_is_off_by_1_4(leaf, factor, weight, bias):
    torch.manual_seed(0)
    # Enough biases to see it: those of six networks.
    new = apply(nn.ModuleList(layer for _ in range(6) for layer in layers("linear")), weight, bias)
    fresh = [values_of(network, leaf) for network in expected(new, weight, bias)]
    assert not fault(values_of(new, leaf), fresh)
    assert "of the variance" in fault([value * math.sqrt(factor) for value in values_of(new, leaf)], fresh)


def test_the_test_sees_another_distribution():
    torch.manual_seed(0)
    new = apply(layers("conv"), "xavier normal", "default")
    assert fault(values_of(new, "weight"), [values_of(n, "weight") for n in expected(new, "xavier uniform", "default")])


@pytest.mark.parametrize(
    ("weight", "bias"),
    [
        ("xavier uniform", "default"),
        ("kaiming normal, fan out", "default"),
        ("kaiming uniform, fan out", "default"),
        ("normal 1", "default"),
        ("trunc_normal .02", "zeros"),
        ("lecun normal, cut off", "normal 1e-6"),
        ("orthogonal", "default"),
        ("dirac", "default"),
    ],
)
def test_a_cropped_network_of_every_kind_of_layer_is_drawn_like_a_fresh_one(weight, bias):
    torch.manual_seed(0)
    model = apply(Mixed(), weight, bias)
    small = precrop(model, 0.5, input_shape=SHAPE)
    assert small.plain.weight.shape != model.plain.weight.shape
    fresh = expected(small, weight, bias)
    for leaf in ("weight", "bias"):
        assert not fault(values_of(small, leaf), [values_of(network, leaf) for network in fresh]), leaf


def test_a_bias_whose_layer_has_fewer_inputs_is_drawn_for_them():
    """The classifier's bias keeps its shape, not its bound."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1000))
    small = precrop(model, 0.25, input_shape=SHAPE)
    bound = 1 / math.sqrt(small[3].in_features)
    assert 0.98 * bound < small[3].bias.abs().max() < bound


@pytest.mark.parametrize("seed", range(20))
def test_biases_of_four_values_are_judged_together(seed):
    """A tensor of four values tells nothing; ten of them tell a bound."""
    torch.manual_seed(seed)
    old = nn.ModuleList(nn.Linear(inputs, 4) for inputs in (4, 8, 12, 16, 24, 32, 48, 64, 96, 128))
    for layer in old:
        init.xavier_normal_(layer.weight)
    initializer = Initializer(old)
    for layer in old:
        rule = initializer.verdict(layer.bias).rule
        assert (rule.family, rule.law) == ("uniform", "fan in")
        assert rule.variance(Fans(3, 4)) == pytest.approx(1 / 9)


def test_two_rules_in_one_network_are_told_apart():
    torch.manual_seed(0)
    model = Mixed()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, 0, 0.01)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Conv2d):
            init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    initializer = Initializer(model)
    found = {name: initializer.verdict(p).rule for name, p in model.named_parameters() if initializer.is_drawn(p)}
    for name, rule in found.items():
        kind, leaf = name.split(".")
        if leaf == "weight":
            law = "fixed" if kind in ("hidden", "fc") else "fan in" if kind == "up" else "fan out"
            assert rule.law == law, name
    assert found["hidden.weight"].variance(None) == pytest.approx(1e-4)
    assert found["plain.weight"].log_gain == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_rounding_does_not_change_the_verdict(dtype):
    torch.manual_seed(0)
    model = apply(Mixed(), "xavier uniform", "default").to(dtype)
    initializer = Initializer(model)
    for name, parameter in model.named_parameters():
        rule = initializer.verdict(parameter).rule
        assert (rule.family, rule.law) == ("uniform", "mean fan" if "weight" in name else "fan in"), name
    assert {p.dtype for p in precrop(model, 0.5, input_shape=SHAPE).parameters()} == {dtype}


def test_a_fixed_spread_does_not_drift_in_small_tensors():
    torch.manual_seed(0)
    model = apply(Mixed(8, 8, 8, 8), "trunc_normal .02", "zeros")
    initializer = Initializer(model)
    for name, parameter in model.named_parameters():
        if "weight" in name:
            assert initializer.verdict(parameter).rule.variance(None) == pytest.approx(4e-4), name


@pytest.mark.parametrize("shape", [(12, 40), (40, 12), (8, 4, 3, 3)])
def test_orthogonal_stays_orthogonal_with_its_gain(shape):
    torch.manual_seed(0)
    old = nn.Linear(80, 20)
    init.orthogonal_(old.weight, gain=1.5)
    new = Initializer(old).draw(old.weight, shape, fans_of(shape)).flatten(1)
    square = new @ new.T if new.shape[0] <= new.shape[1] else new.T @ new
    assert torch.allclose(square, 2.25 * torch.eye(len(square)), atol=1e-5)


def test_orthogonal_parts_and_centres_stay_what_they_are():
    torch.manual_seed(0)
    grouped = nn.Conv2d(32, 24, 3, groups=4)  # 6 rows of 72 numbers in each group
    with torch.no_grad():
        for part in grouped.weight.chunk(4):
            part.copy_(init.orthogonal_(torch.empty(6, 72)).view_as(part))
    new = Initializer(grouped).draw(grouped.weight, (12, 4, 3, 3), Fans(36, 108, 4)).flatten(1)
    for part in new.chunk(4):
        assert torch.allclose(part @ part.T, torch.eye(3), atol=1e-5)
    delta = nn.Conv2d(16, 24, 3)
    with torch.no_grad():
        delta.weight.zero_()[:, :, 1, 1] = init.orthogonal_(torch.empty(24, 16))
    new = Initializer(delta).draw(delta.weight, (10, 8, 3, 3), Fans(72, 90))
    centre = new[:, :, 1, 1]
    assert torch.allclose(centre.T @ centre, torch.eye(8), atol=1e-5)
    assert new.count_nonzero() == centre.count_nonzero()


@pytest.mark.parametrize("groups", [1, 4])
def test_dirac_is_dirac_at_the_new_size(groups):
    conv = nn.Conv2d(16, 32, 3, groups=groups)
    init.dirac_(conv.weight, groups)
    new = Initializer(conv).draw(conv.weight, (20, 8 // groups, 3, 3), Fans(72 // groups, 180, groups))
    assert torch.equal(new, init.dirac_(torch.empty(20, 8 // groups, 3, 3), groups))


def test_bilinear_upsampling_stays_itself():
    up = nn.ConvTranspose2d(16, 16, 4, 2, 1)
    kernel = torch.tensor([0.25, 0.75, 0.75, 0.25])
    with torch.no_grad():
        up.weight.zero_()[range(16), range(16)] = kernel[:, None] * kernel
    new = Initializer(up).draw(up.weight, (6, 6, 4, 4), Fans(96, 96))
    assert torch.equal(new, up.weight[:6, :6])


class Table(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.table = nn.Parameter(values)


@pytest.mark.parametrize(
    "values",
    [
        torch.arange(12.0).sin().expand(40, 12).clone(),  # every channel has the same
        torch.tensor([1.0, -1.0]).repeat(20)[:, None].expand(40, 3).clone(),
        torch.tensor([0.0, 1.0, 0.0, 2.0]).repeat(10),
    ],
)
def test_values_that_repeat_from_channel_to_channel_are_cut(values):
    module = Table(values)
    initializer = Initializer(module)
    shape = (10, *values.shape[1:])
    assert torch.equal(initializer.draw(module.table, shape, None), values[:10])
    assert not initializer.undecided


@pytest.mark.parametrize(
    "values",
    [
        torch.linspace(0, 1, 40),
        (torch.arange(40)[:, None] * 100 ** -torch.linspace(0, 1, 32)).sin(),
        torch.exp(-torch.arange(1.0, 17)[:, None, None] * torch.linspace(-1, 1, 9)[:, None] ** 2)
        .expand(16, 9, 9)
        .clone(),
    ],
)
def test_values_that_were_computed_are_kept_and_said(values):
    module = Table(values)
    initializer = Initializer(module)
    shape = (10, *values.shape[1:])
    assert torch.equal(initializer.draw(module.table, shape, None), recut(values, shape))
    assert initializer.undecided == ["table looks computed rather than drawn, so the crop has its first values."]


def test_a_spread_of_no_rule_is_kept_and_said():
    torch.manual_seed(0)
    old = nn.ModuleList(nn.Linear(i, o) for i, o in ((20, 50), (50, 70), (70, 90)))
    for layer, deviation in zip(old, (0.0173, 0.0771, 0.337), strict=True):
        init.normal_(layer.weight, std=deviation)
    initializer = Initializer(old)
    small = [initializer.draw(layer.weight, (200, 100), fans_of((200, 100))) for layer in old]
    for layer, new in zip(old, small, strict=True):
        assert new.var() == pytest.approx(layer.weight.var().item(), rel=0.1)
    assert len(initializer.undecided) == 3
    assert initializer.undecided[0].startswith("0.weight has a spread that no rule")


def test_a_choice_that_the_layers_leave_open_is_said():
    """Of layers with as many inputs as outputs nobody can tell which of the two counts."""
    torch.manual_seed(0)
    old = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
    for layer in old:
        init.kaiming_normal_(layer.weight, nonlinearity="relu")
    initializer = Initializer(old)
    initializer.draw(old[0].weight, (32, 32), fans_of((32, 32)))
    assert not initializer.undecided  # the same spread either way
    initializer.draw(old[0].weight, (16, 48), fans_of((16, 48)))
    assert "0.weight was drawn by a rule that its layers leave open" in initializer.undecided[0]


@pytest.mark.parametrize(
    "build",
    [
        torchvision.models.resnet18,
        torchvision.models.mobilenet_v2,
        torchvision.models.squeezenet1_1,
        lambda: timm.create_model("efficientnet_b0"),
        lambda: timm.create_model("convnext_atto"),
        lambda: timm.create_model("nfnet_f0"),
        lambda: timm.create_model("mixer_s32_224"),
    ],
)
def test_usual_networks_leave_nothing_open_and_are_fresh(build):
    torch.manual_seed(0)
    model = build()
    initializer = Initializer(model)
    drawn = [parameter for parameter in model.parameters() if initializer.is_drawn(parameter)]
    for parameter in drawn:
        shape = tuple(max(1, size // 2) for size in parameter.shape[:2]) + tuple(parameter.shape[2:])
        if id(parameter) in initializer.fans and parameter.dim() > 1 and parameter.numel() < 100_000:
            initializer.draw(parameter, shape, fans_of(shape))
    assert all(initializer.verdict(parameter).shared for parameter in drawn)
    assert not initializer.undecided
    assert not looks_trained(model, initializer)


def test_a_mixture_of_experts_counts_the_fans_of_one():
    conv = timm.layers.CondConv2d(32, 64, 3, bias=True)
    rule = Initializer(nn.ModuleList([conv])).verdict(conv.bias).rule
    assert (rule.family, rule.law) == ("uniform", "fan in")
    assert layer_fans(conv, {}) == Fans(288, 576)


def test_the_law_of_a_single_tensor_costs_what_it_is_worth():
    """PyTorch's default is believed of one bias; a gain of nobody's is not believed of one weight."""
    torch.manual_seed(0)
    linear = nn.Linear(100, 10)
    assert explain([Sample(spread_of(linear.bias), fans_of((10, 100)))])[0].rule.law == "fan in"
    init.normal_(linear.weight, std=0.0347)
    assert not explain([Sample(spread_of(linear.weight), fans_of((10, 100)))])[0].shared


# -- trained networks -------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self, norm, widths=(16, 24, 32)):
        super().__init__()
        blocks, channels = [], 3
        for width in widths:
            blocks += [nn.Conv2d(channels, width, 3, padding=1), norm(width), nn.ReLU()]
            channels = width
        self.features, self.fc = nn.Sequential(*blocks), nn.Linear(channels, 10)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


NORMS = {
    "group": lambda width: nn.GroupNorm(4, width),
    "layer": lambda width: nn.GroupNorm(1, width),
    "batch without statistics": lambda width: nn.BatchNorm2d(width, track_running_stats=False),
    "none": lambda width: nn.Identity(),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-3),
}


def train(model, optimizer="adam", steps=20):
    images, labels = torch.randn(10, *SHAPE), torch.arange(10)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images + 0.5 * torch.randn_like(images)), labels).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("rule", [("default", "default"), ("default", "zeros"), ("trunc_normal .02", "zeros")])
def test_training_without_batchnorm_is_noticed(norm, rule, optimizer):
    torch.manual_seed(0)
    model = apply(Normed(NORMS[norm]), *rule)
    assert not looks_trained(model, Initializer(model))
    train(model, optimizer)
    assert looks_trained(model, Initializer(model))


def test_nothing_of_a_training_is_left():
    torch.manual_seed(0)
    model = train(Normed(NORMS["group"]))
    with pytest.warns(PrecropWarning, match="training is not carried over"):
        small = precrop(model, 0.5, input_shape=SHAPE)
    for module in small.modules():
        if isinstance(module, nn.GroupNorm):
            assert module.weight.eq(1).all()
            assert module.bias.eq(0).all()
    assert not torch.isin(small.fc.bias, model.fc.bias).any()
    bound = 1 / math.sqrt(small.fc.in_features)
    assert small.fc.bias.abs().max() <= bound


def test_what_cannot_be_initialized_anew_is_said():
    torch.manual_seed(0)
    model = LayerScale()
    init.normal_(model.gamma, 0.1, 0.001)
    old = model.gamma.clone()
    notes = initialize_anew(model)
    assert not torch.isin(model.gamma, old).any()
    assert len(notes) == 1
    assert notes[0].startswith("LayerScale has no reset_parameters, so gamma start")
    frozen = torchvision.ops.FrozenBatchNorm2d(4)
    for buffer in frozen.buffers():
        buffer.uniform_()
    assert not initialize_anew(frozen)
    assert [buffer.unique().tolist() for buffer in frozen.buffers()] == [[1], [0], [0], [1]]


@pytest.mark.parametrize("name", ["convnext_atto", "nf_resnet26", "resnetv2_50x1_bit", "mixer_s32_224"])
def test_fresh_networks_without_batchnorm_crop_without_a_warning(name):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrecropWarning)
        assert not looks_trained(model, Initializer(model))


def test_every_pair_of_rules_has_a_name():
    assert len(rules.INITIALIZATIONS) == len(BIASES) * (len(WEIGHTS) + len(PATTERNS))
