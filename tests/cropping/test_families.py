"""The smallest network of every file of timm and of every family of torchvision, cropped to half its parameters.

`benchmarks/coverage.py` runs all networks and checks more; its table is docs/COVERAGE.md.
"""

import sys
from pathlib import Path

import pytest
import torch

from precrop import apply, plan
from precrop.cropping.forwards import forward_of

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from coverage_check import run_in_training, shapes, step
from coverage_networks import Network, build

# Network to the image size of a training step, and the least share of parameters that a free width
# must touch. Without a size a step would take long: the network has no data, and its outputs' shapes are compared.
# A third number is the budget where half is out of reach.
CNNS = {
    "timm/test_byobnet": (64, 1.0),
    "timm/convmixer_768_32": (None, 1.0),
    "timm/test_convnext": (64, 1.0),
    "timm/cs3darknet_focus_s": (64, 1.0),
    "timm/cspnext_tiny": (64, 1.0),
    "timm/densenet121": (64, 1.0),
    "timm/dla46x_c": (64, 1.0),
    "timm/dpn48b": (64, 1.0),
    "timm/test_efficientnet": (64, 1.0),
    "timm/fasternet_t0": (64, 1.0),
    "timm/fastvit_t8": (64, 1.0),
    "timm/focalnet_tiny_srf": (None, 1.0),
    "timm/ghostnet_050": (64, 1.0),
    "timm/hardcorenas_b": (64, 1.0),
    "timm/hgnetv2_b0": (64, 1.0),
    "timm/hrnet_w18_small": (64, 1.0),
    "timm/inception_next_atto": (64, 1.0),
    "timm/inception_resnet_v2": (None, 1.0),
    "timm/inception_v3": (None, 1.0),
    "timm/inception_v4": (None, 1.0),
    "timm/lcnetv2_small": (64, 1.0),
    "timm/test_mambaout": (64, 1.0),
    "timm/poolformerv2_s12": (64, 1.0),
    "timm/mobilenetv3_small_050": (64, 1.0),
    "timm/nasnetalarge": (None, 1.0),
    "timm/test_nfnet": (64, 1.0),
    "timm/pnasnet5large": (None, 1.0),
    "timm/rdnet_tiny": (None, 1.0),
    "timm/regnetx_002": (64, 1.0),
    "timm/repghostnet_050": (64, 1.0),
    "timm/repvit_m1": (64, 1.0),
    "timm/res2next50": (None, 1.0),
    "timm/resnest14d": (64, 1.0),
    "timm/test_resnet": (64, 1.0),
    "timm/resnetv2_18": (64, 1.0),
    "timm/rexnet_100": (64, 1.0),
    "timm/selecsls42": (None, 1.0),
    "timm/legacy_seresnet18": (64, 1.0),
    "timm/skresnet18": (64, 1.0),
    "timm/starnet_s050": (64, 1.0),
    "timm/tresnet_m": (None, 1.0),
    "timm/vgg11": (None, 1.0),
    "timm/ese_vovnet19b_slim_dw": (64, 1.0),
    "timm/legacy_xception": (None, 1.0),
    "timm/xception41p": (None, 1.0),
    "torchvision/alexnet": (None, 1.0),
    "torchvision/convnext_tiny": (None, 1.0),
    "torchvision/densenet121": (64, 1.0),
    "torchvision/efficientnet_b0": (64, 1.0),
    "torchvision/googlenet": (64, 1.0),
    "torchvision/inception_v3": (None, 1.0),
    "torchvision/mnasnet0_5": (64, 1.0),
    "torchvision/mobilenet_v2": (64, 1.0),
    "torchvision/mobilenet_v3_small": (64, 1.0),
    "torchvision/quantized_googlenet": (64, 1.0),
    "torchvision/quantized_inception_v3": (None, 1.0),
    "torchvision/quantized_mobilenet_v2": (64, 1.0),
    "torchvision/quantized_mobilenet_v3_large": (64, 1.0),
    "torchvision/quantized_resnet18": (64, 1.0),
    "torchvision/quantized_shufflenet_v2_x0_5": (64, 1.0),
    "torchvision/regnet_y_400mf": (64, 1.0),
    "torchvision/resnet18": (64, 1.0),
    "torchvision/deeplabv3_mobilenet_v3_large": (64, 1.0),
    "torchvision/fcn_resnet50": (None, 1.0),
    "torchvision/lraspp_mobilenet_v3_large": (64, 1.0),
    "torchvision/shufflenet_v2_x0_5": (64, 1.0),
    "torchvision/squeezenet1_1": (64, 1.0),
    "torchvision/vgg11": (None, 1.0),
    "torchvision/mc3_18": (None, 1.0),
    "torchvision/s3d": (None, 1.0),
    "torchvision/fasterrcnn_mobilenet_v3_large_320_fpn": (128, 1.0),
    "torchvision/fcos_resnet50_fpn": (None, 1.0),
    "torchvision/keypointrcnn_resnet50_fpn": (None, 1.0),
    "torchvision/raft_small": (None, 1.0),
    "torchvision/retinanet_resnet50_fpn": (None, 1.0),
    "torchvision/ssd300_vgg16": (None, 1.0),
}
HYBRIDS = {
    "timm/beit_base_patch16_224": (None, 0.65),
    "timm/halonet_h1": (None, 1.0),
    "timm/cait_xxs24_224": (None, 1.0),
    "timm/coat_tiny": (None, 0.47, 0.75),
    "timm/convit_tiny": (None, 0.99),
    "timm/cpubone_nano": (64, 1.0),
    "timm/crossvit_tiny_240": (64, 1.0),
    "timm/csatv2": (64, 0.99),
    "timm/davit_tiny": (None, 1.0),
    "timm/deepseek_vit_412m": (None, 0.67),
    "timm/deit_tiny_patch16_224": (None, 1.0),
    "timm/edgenext_xx_small": (64, 0.96),
    "timm/efficientformer_l1": (None, 1.0),
    "timm/efficientformerv2_s0": (None, 0.98),
    "timm/efficientvim_m1": (64, 0.69),
    "timm/efficientvit_b0": (64, 1.0),
    "timm/efficientvit_m0": (64, 0.81),
    "timm/vit_tiny_patch16_dinov3_qkvb": (64, 0.65),
    "timm/gcvit_xxtiny": (None, 0.5),
    "timm/gemma4_vit_167m": (None, 0.67),
    "timm/hiera_tiny_224": (None, 1.0),
    "timm/sam2_hiera_tiny": (None, 1.0),
    "timm/iformer_t": (64, 1.0),
    "timm/levit_128s": (224, 1.0),
    "timm/lowformer_b0": (64, 1.0),
    "timm/test_coatnet": (160, 1.0),
    "timm/gmlp_ti16_224": (None, 0.8),
    "timm/mobilenetv5_base": (None, 1.0),
    "timm/mobilevit_xxs": (64, 1.0),
    "timm/mvitv2_tiny": (None, 0.99),
    "timm/naflexvit_base_patch16_parfac_gap": (None, 1.0),
    "timm/nest_tiny": (None, 1.0),
    "timm/nextvit_small": (None, 0.88),
    "timm/pit_ti_224": (None, 1.0),
    "timm/pvt_v2_b0": (None, 0.46, 0.75),
    "timm/qwen3_vit_88m": (None, 0.66),
    "timm/sequencer2d_s": (64, 0.48, 0.75),
    "timm/shvit_s1": (64, 1.0),
    "timm/swiftformer_xs": (64, 1.0),
    "timm/swin_tiny_patch4_window7_224": (None, 1.0),
    "timm/swinv2_tiny_window16_256": (None, 0.61),
    "timm/swinv2_cr_tiny_224": (None, 1.0),
    "timm/tiny_vit_5m_224": (64, 1.0),
    "timm/tnt_s_legacy_patch16_224": (None, 1.0),
    "timm/twins_svt_small": (None, 1.0),
    "timm/visformer_tiny": (None, 1.0),
    "timm/test_vit": (64, 1.0),
    "timm/test_vit_relpos": (None, 0.41, 0.75),
    "timm/samvit_base_patch16_224": (None, 1.0),
    "timm/vitamin_base_224": (None, 1.0),
    "timm/volo_d1_224": (None, 1.0),
    "timm/xcit_nano_12_p8_224": (64, 1.0),
    "torchvision/maxvit_t": (None, 0.76),
    "torchvision/swin_t": (None, 0.61),
    "torchvision/mvit_v2_s": (None, 0.99),
    "torchvision/swin3d_t": (None, 0.62),
    "torchvision/vit_b_16": (None, 0.65),
}
# Input shapes that cannot be read off the network.
VIDEO = (3, 16, 224, 224)
FIXED_INPUTS = {
    "torchvision/inception_v3": (3, 299, 299),  # its auxiliary head needs that much
    "torchvision/quantized_inception_v3": (3, 299, 299),
    "torchvision/mc3_18": (3, 16, 112, 112),
    "torchvision/s3d": VIDEO,
    "torchvision/mvit_v2_s": VIDEO,
    "torchvision/swin3d_t": VIDEO,
}


@pytest.mark.parametrize("name", [*CNNS, *HYBRIDS])
def test_crop_to_half(name):
    size, free, *other = (CNNS | HYBRIDS)[name]
    budget = other[0] if other else 0.5
    model = build(Network(name, ""), on_meta=size is None)
    crop = plan(model, params=budget, input_shape=FIXED_INPUTS.get(name))
    assert crop.params_ratio <= budget
    assert crop.params_ratio >= 0.99 * budget or crop.notes
    assert 1 - crop.fixed_share >= free, f"free: {1 - crop.fixed_share:.3f}"

    small = apply(model, crop)
    assert sum(p.numel() for p in small.parameters()) == crop.cropped.params
    assert list(small.state_dict()) == list(model.state_dict())
    channels, *rest = crop.input_shape
    shape = (2, channels, *rest) if size is None else (2, channels, *rest[:-2], size, size)
    images = torch.randn(shape, device="meta" if size is None else None)
    with torch.no_grad():
        assert shapes(forward_of(small.eval())(images)) == shapes(forward_of(model.eval())(images))
    if size is not None:
        step(small, run_in_training(small.train(), images))
