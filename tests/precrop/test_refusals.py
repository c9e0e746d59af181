"""Networks that cannot be cropped as they are: what each is told."""

import copy

import pytest
import torch
from nets import Chain
from torch import nn

import precrop
from precrop import PrecropError

SHAPE = (3, 8, 8)


def body():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 7)
    ).eval()


def within(module):
    return nn.Sequential(nn.Conv2d(3, 3, 1), module)


LAZY = {
    "LazyConv1d": (lambda: nn.LazyConv1d(8, 3), (3, 8)),
    "LazyConv2d": (lambda: nn.LazyConv2d(8, 3), SHAPE),
    "LazyConv3d": (lambda: nn.LazyConv3d(8, 3), (3, 8, 8, 8)),
    "LazyConvTranspose1d": (lambda: nn.LazyConvTranspose1d(8, 3), (3, 8)),
    "LazyConvTranspose2d": (lambda: nn.LazyConvTranspose2d(8, 3), SHAPE),
    "LazyConvTranspose3d": (lambda: nn.LazyConvTranspose3d(8, 3), (3, 8, 8, 8)),
    "LazyLinear": (lambda: nn.LazyLinear(8), (8,)),
    "LazyBatchNorm1d": (lambda: nn.LazyBatchNorm1d(), (3, 8)),
    "LazyBatchNorm2d": (lambda: nn.LazyBatchNorm2d(), SHAPE),
    "LazyBatchNorm3d": (lambda: nn.LazyBatchNorm3d(), (3, 8, 8, 8)),
    "LazyInstanceNorm1d": (lambda: nn.LazyInstanceNorm1d(affine=True), (3, 8)),
    "LazyInstanceNorm2d": (lambda: nn.LazyInstanceNorm2d(affine=True), SHAPE),
    "LazyInstanceNorm3d": (lambda: nn.LazyInstanceNorm3d(track_running_stats=True), (3, 8, 8, 8)),
}


def test_every_lazy_layer_of_torch_is_here():
    assert set(LAZY) == {name for name in vars(nn) if name.startswith("Lazy")}


@pytest.mark.parametrize("name", LAZY)
def test_a_layer_without_sizes_asks_for_a_batch(name):
    make, shape = LAZY[name]
    model = nn.Sequential(make())
    for call in (lambda: precrop.precrop(model, 0.5, input_shape=shape), lambda: precrop.inspect(model)):
        with pytest.raises(
            PrecropError, match=rf"the module '0', a {name}, has no sizes yet \(.*Run one batch first: mo"
        ):
            call()
    assert type(model[0]).__name__ == name


@pytest.mark.filterwarnings("ignore:this model has been trained")
def test_a_lazy_network_crops_once_it_has_run():
    model = nn.Sequential(nn.LazyConv2d(32, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.LazyConv2d(8, 3))
    model(torch.zeros(2, *SHAPE))
    assert precrop.precrop(model, 0.5, input_shape=SHAPE)[0].out_channels < 32


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.jit.script(body()), "the model is a ScriptModule, whose Python code is gone"),
        (lambda: torch.jit.trace(body(), torch.zeros(1, *SHAPE)), "the model is a ScriptModule"),
        (lambda: within(torch.jit.script(body())), "the module '1' is a ScriptModule.*Crop it before torch.jit"),
        (lambda: torch.compile(body()), r"the model is wrapped in OptimizedModule.*\(model\._orig_mod\)"),
        (lambda: nn.DataParallel(body()), r"the model is wrapped in DataParallel.*\(model\.module\)"),
        (
            lambda: torch.export.export(body(), (torch.zeros(2, *SHAPE),)),
            "got an ExportedProgram.*fixes its batch.*Crop ",
        ),
        (
            lambda: torch.export.export(body(), (torch.zeros(3, *SHAPE),)).module(),
            "an exported program .* fixes its batch.*Crop the network that was exported",
        ),
        (
            lambda: torch.ao.quantization.quantize_dynamic(body(), {nn.Linear}, dtype=torch.qint8),
            "the module '5' is quantized .*Crop the float network first",
        ),
    ],
)
def test_what_is_no_plain_network_any_more(make, message):
    with pytest.raises(PrecropError, match=message):
        precrop.precrop(make(), 0.5, input_shape=SHAPE)


@pytest.mark.filterwarnings("ignore")
def test_a_converted_network_is_quantized():
    from torch.ao import quantization

    model = nn.Sequential(quantization.QuantStub(), *copy.deepcopy(body())[:3], quantization.DeQuantStub()).eval()
    model.qconfig = quantization.get_default_qconfig()
    prepared = quantization.prepare(model)
    prepared(torch.zeros(2, *SHAPE))
    with pytest.raises(PrecropError, match=r"the module '0' is quantized \(torch\.ao\.nn\.quantized"):
        precrop.precrop(quantization.convert(prepared), 0.5, input_shape=SHAPE)


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_a_wrapped_part_is_cropped_where_it_stands(wrap):
    if wrap is nn.DataParallel and torch.cuda.is_available():
        pytest.skip("with a GPU it scatters its input")
    small = precrop.precrop(within(wrap(body())), 0.5, input_shape=SHAPE)
    assert precrop.plan(within(body()), 0.5, input_shape=SHAPE).cropped == small.crop_plan.cropped


class Sized(nn.Module):
    """Slices at a number of its own."""

    def __init__(self, channels, **others):
        super().__init__()
        self.half = channels // 2
        vars(self).update(others)

    def forward(self, x):
        return x[:, : self.half] + x[:, self.half :]


class Plain(nn.Module):
    """The same without an attribute of a computed name."""

    def __init__(self, channels):
        super().__init__()
        self.half, self.label, self.scale = channels // 2, "a", 0.5
        self.optional = None

    @property
    def double(self):
        return 2 * self.half

    def forward(self, x):
        return x[:, : self.half] + x[:, self.half :] if self.optional is None else x


class Heir(Plain):
    """Has its parent's attributes."""


@pytest.fixture
def _tables(monkeypatch):
    from precrop.cropping import layers

    for name in ("SIZE_ATTRIBUTES", "REGISTERED"):
        monkeypatch.setattr(layers, name, dict(getattr(layers, name)))


def holder(block):
    return nn.Sequential(nn.Conv2d(3, 32, 3), block, nn.Conv2d(16, 5, 3))


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize("cls", [Plain, Heir])
def test_a_misspelt_attribute_is_refused(cls):
    with pytest.raises(PrecropError, match=r"no code of (Plain|Heir) uses an attribute 'hafl'\. Did you mean 'half'\?"):
        precrop.register_size_attributes(cls, "half", "hafl")
    for name in ("half", "optional", "double"):
        precrop.register_size_attributes(cls, name)


@pytest.mark.usefixtures("_tables")
def test_an_attribute_that_no_module_has_is_refused_when_used():
    precrop.register_size_attributes(Sized, "hafl")  # a class that sets attributes by computed names
    with pytest.raises(
        PrecropError, match=r"'hafl' was registered .*none of its modules here has it\. Did you mean 'half"
    ):
        precrop.inspect(holder(Sized(32)), SHAPE)
    precrop.inspect(Chain(), SHAPE)  # without a module of the class
    precrop.inspect(nn.Sequential(holder(Sized(32)), nn.Sequential(), Extra()), SHAPE)


class Extra(Sized):
    """Has what the other lacks: one of a class is enough."""

    def __init__(self):
        super().__init__(4, hafl=2)

    def forward(self, x):
        return x


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize("wrong", ["label", "scale"])
def test_an_attribute_that_is_no_size_is_refused_when_used(wrong):
    precrop.register_size_attributes(Plain, "half", wrong)
    with pytest.raises(PrecropError, match=rf"'{wrong}' of 1, a Plain, was registered as a size and is .*whole number"):
        precrop.inspect(holder(Plain(32)), SHAPE)


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize("value", [16, [16, 16], (16, 16), None])
def test_a_size_may_be_a_number_or_several(value):
    precrop.register_size_attributes(Sized, "half", "more")
    assert precrop.inspect(holder(Sized(32, more=value)) if value is not None else Chain(), SHAPE).widths


@pytest.mark.usefixtures("_tables")
def test_a_registered_size_is_free():
    fixed = precrop.inspect(holder(Plain(32)), SHAPE)
    precrop.register_size_attributes(Plain, "half", "optional")
    assert len(precrop.inspect(holder(Plain(32)), SHAPE).widths) == len(fixed.widths) + 1
