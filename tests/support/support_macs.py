"""An independent count of multiply-adds: torch's own flop counter, told the products that it does not know."""

from contextlib import contextmanager
from math import prod

import torch
import torchvision  # noqa: F401 - registers its operators
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from precrop.cropping.forwards import forward_of

aten = torch.ops.aten


def _flops_of_mv(matrix, vector, *args, out_shape=None, **kwargs):
    return 2 * prod(matrix)


def _flops_of_addmv(bias, matrix, vector, *args, out_shape=None, **kwargs):
    return 2 * prod(matrix)


def _flops_of_addbmm(bias, a, b, *args, out_shape=None, **kwargs):
    return 2 * prod(a) * b[2]


def _flops_of_lstm(x, w_ih, w_hh, *args, out_shape=None, **kwargs):
    return 2 * x[0] * x[1] * (prod(w_ih) + prod(w_hh))


def _flops_of_trilinear(x, weight, y, *args, out_shape=None, **kwargs):
    return 2 * prod(x[:-1]) * (prod(weight) + weight[0] * weight[2])


def _flops_of_deform_conv(x, weight, *args, out_shape=None, **kwargs):
    return 2 * out_shape[0] * prod(out_shape[2:]) * prod(weight)


#: What `FlopCounterMode` counts as nothing: products with a vector, a sum of products, bilinear layers, deformable
#: convolutions, the fused LSTM of a CPU.
UNKNOWN_TO_TORCH = {
    aten.mv: _flops_of_mv,
    aten.dot: _flops_of_mv,
    aten.addmv: _flops_of_addmv,
    aten.addbmm: _flops_of_addbmm,
    aten._trilinear: _flops_of_trilinear,
    aten.mkldnn_rnn_layer: _flops_of_lstm,
    torch.ops.torchvision.deform_conv2d: _flops_of_deform_conv,
}


def counted_macs(model, input_shape):
    """Multiply-adds of ``model`` on one image (C, H, W) in inference, by `FlopCounterMode`: half of its flops.

    Convolutions and products of matrices and vectors; products of elements, sums, norms and FFTs are none. The model
    stays as it was. It may be on the meta device, which is the quickest.
    """
    known = next(iter(model.parameters()), torch.empty(0))
    image = torch.zeros(1, *input_shape, dtype=known.dtype, device=known.device)
    # Fused attention has no formula on a CPU; taken apart, its two products are counted.
    counter = FlopCounterMode(display=False, custom_mapping=UNKNOWN_TO_TORCH)
    with _in_inference(model), _without_fused_attention(), counter:
        forward_of(model)(image)
    flops = counter.get_total_flops()
    assert flops % 2 == 0
    return flops // 2


@contextmanager
def _in_inference(model):
    """Inference mode of the modules, and no parameter that asks for a gradient: the counter hooks on those."""
    training = {module: module.training for module in model.modules()}
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        with torch.no_grad():
            model.eval().requires_grad_(False)
            yield
    finally:
        for module, before in training.items():
            module.training = before
        for parameter in wanted:
            parameter.requires_grad_(True)


@contextmanager
def _without_fused_attention():
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
