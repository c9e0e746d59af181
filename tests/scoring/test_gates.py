"""Gates that start shut are opened on the copy that is scored."""

import pytest
import torch
from torch import nn

from precrop import create_model, score
from precrop.scoring.gates import open_gates

SHAPE = (3, 16, 16)


class Gated(nn.Module):
    """A residual branch behind one of the usual gates."""

    def __init__(self, gate):
        super().__init__()
        self.stem, self.branch, self.fc = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 10)
        self.norm = nn.BatchNorm2d(16)
        self.gate = gate
        self.scale_name = None

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        return self.fc((x + self.gate(self.branch(x))).mean((2, 3)))


class Scale(nn.Module):
    def __init__(self, name, value, shape=(16, 1, 1)):
        super().__init__()
        self.register_parameter(name, nn.Parameter(torch.full(shape, value)))
        self.name = name

    def forward(self, x):
        return x * self.get_parameter(self.name)


def zero_norm():
    norm = nn.BatchNorm2d(16)
    nn.init.zeros_(norm.weight)
    return norm


def zero_conv():
    conv = nn.Conv2d(16, 16, 1, bias=False)
    nn.init.zeros_(conv.weight)
    return conv


GATES = {
    "norm": zero_norm,
    "convolution": zero_conv,
    "gamma": lambda: Scale("gamma", 1e-6),
    "layer_scale_2": lambda: Scale("layer_scale_2", 1e-5),
    "skipinit_gain": lambda: Scale("skipinit_gain", 0.0, ()),
    "alpha": lambda: Scale("alpha", 0.0, (1,)),
}


@pytest.mark.parametrize("scorer", ["snip", "grasp", "synflow"])
@pytest.mark.parametrize("gate", GATES)
def test_what_lies_behind_a_shut_gate_is_scored(gate, scorer):
    data = [(torch.randn(8, *SHAPE), torch.arange(8))]
    model = Gated(GATES[gate]())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    densities = score(model, scorer, 0.25, data=data, input_shape=SHAPE)
    assert densities["branch"] > 0.05
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_what_is_no_gate_stays():
    """Shifts, tokens, embeddings, matrices, and scales that are open."""

    class Others(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4)
            nn.init.constant_(self.norm.weight, 0.3)
            self.bias, self.cls_token, self.pos_embed = (nn.Parameter(torch.zeros(1, 1, 4)) for _ in range(3))
            self.gamma = nn.Parameter(torch.zeros(4, 4))
            self.layer_scale = nn.Parameter(torch.full((4,), 0.2))

    model = Others()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert open_gates(model, {}) == []
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "gates"),
    [
        ("timm/test_resnet", ["layer1.0.bn3.weight", "layer1.0.bn2.weight"]),
        ("timm/test_nfnet", ["stages.0.0.conv3.gain"]),
        ("timm/test_convnext", ["stages.0.blocks.0.gamma"]),
    ],
)
def test_timm_s_gates(name, gates):
    opened = open_gates(create_model(name), {})
    assert set(gates) & set(opened)
    assert not [gate for gate in opened if gate.endswith("bias")]
