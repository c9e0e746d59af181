"""What a crop keeps of the original beside its structure: formats, types, devices, modes."""

import pytest
import torch
from nets import Chain
from torch import nn

import precrop


class Mixed(nn.Module):
    """Several kinds of layer, a frozen one, one in half precision, one in eval mode."""

    def __init__(self, dims: int = 2) -> None:
        super().__init__()
        conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv3d, nn.BatchNorm3d)
        self.stem, self.norm = conv(3, 16, 3, padding=1), norm(16)
        self.depthwise = conv(16, 16, 3, padding=1, groups=16)
        self.pointwise = conv(16, 24, 1)
        self.head = nn.Linear(24, 5, dtype=torch.float64)

    def forward(self, x):
        x = self.pointwise(self.depthwise(torch.relu(self.norm(self.stem(x)))))
        return self.head(x.flatten(2).mean(2).double())


def order(tensor: torch.Tensor) -> list[int]:
    """The axes in memory, those of one left out."""
    axes = [axis for axis in range(tensor.dim()) if tensor.shape[axis] > 1]
    return sorted(axes, key=tensor.stride, reverse=True)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last, torch.channels_last_3d, "permuted"])
@pytest.mark.parametrize("widen", [False, True])
def test_a_crop_keeps_formats_types_and_modes(form, widen):
    dims = 3 if form == torch.channels_last_3d else 2
    model = Mixed(dims).train()
    if form == "permuted":  # the input axis first, as a transposed copy of a weight lies
        model.stem.weight.data = model.stem.weight.data.transpose(0, 1).contiguous().transpose(0, 1)
        model.head.weight.data = model.head.weight.data.t().contiguous().t()
    else:
        model = model.to(memory_format=form)
    model.norm.eval()
    model.stem.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    small = precrop.precrop(model, 0.5, input_shape=(3, *[8] * dims), widen=widen)
    assert small.stem.out_channels != 16 or small.pointwise.out_channels != 24
    assert {n: m.training for n, m in small.named_modules()} == {n: m.training for n, m in model.named_modules()}
    old = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    new = {**dict(small.named_parameters()), **dict(small.named_buffers())}
    assert list(old) == list(new)
    for name, tensor in new.items():
        was = old[name]
        kept = (tensor.dtype, tensor.device, tensor.requires_grad, type(tensor), order(tensor))
        assert kept == (was.dtype, was.device, was.requires_grad, type(was), order(was)), name
        if isinstance(form, torch.memory_format) and tensor.dim() == dims + 2:
            assert tensor.is_contiguous(memory_format=form), name
            assert tensor.stride() == torch.empty(tensor.shape).to(memory_format=form).stride() or tensor.shape[1] == 1
    if form == "permuted":
        assert order(small.stem.weight) == [1, 0, 2, 3] and order(small.head.weight) == [1, 0]
    small(torch.randn(2, 3, *[8] * dims)).sum().backward()


@pytest.mark.parametrize("budget", [{"ratio": 1.0}, {"params": 1.0}, {"macs": 1}, {"params": 1, "macs": 1.0}])
@pytest.mark.parametrize("scorer", ["synexp", "uniform", "magnitude"])
def test_a_ratio_of_one_keeps_a_network_of_which_nothing_is_free(budget, scorer):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    plan = precrop.plan(model, **budget, scorer=scorer, input_shape=(3, 4, 4))
    assert plan.original == plan.cropped and not plan.widths and "params 1.0000" in str(plan)
    whole = precrop.precrop(model, **budget, scorer=scorer, input_shape=(3, 4, 4))
    assert whole is not model and whole[1].weight is not model[1].weight
    assert whole(torch.zeros(2, 3, 4, 4)).shape == (2, 5)
    assert precrop.CropPlan.from_json(plan.to_json()) == plan
    with pytest.raises(precrop.PrecropError, match="no layer that can be cropped"):
        precrop.plan(model, 0.9, scorer=scorer, input_shape=(3, 4, 4))


def test_a_ratio_of_one_keeps_a_network():
    plan = precrop.plan(Chain(), 1.0, input_shape=(3, 8, 8))
    assert plan.original == plan.cropped


def test_a_network_without_layers_is_none():
    with pytest.raises(precrop.PrecropError, match="no layer that can be cropped"):
        precrop.plan(nn.Flatten(), 1.0, input_shape=(3, 4, 4))
