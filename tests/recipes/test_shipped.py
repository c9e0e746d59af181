"""Every shipped recipe runs, shortened, on generated images."""

import io

import pytest
from rich.console import Console
from support_images import cifar10, fashion_mnist, image_folder

from precrop.recipes import load_recipe, shipped_recipes, train

LISTED = {
    "digits",
    "fashion_mnist_resnet20",
    *(f"cifar10_{name}" for name in ("resnet20", "resnet56", "vgg16_bn", "mobilenet_v2", "shufflenet_v2")),
    *(f"imagenet_{name}" for name in ("resnet34", "resnet50", "mobilenet_v2", "shufflenet_v2", "efficientnet_b0")),
}
# Those that `make test` runs; `make test-slow` runs the others.
QUICK = {"digits", "fashion_mnist_resnet20", "cifar10_resnet20", "imagenet_shufflenet_v2"}
# As on a laptop without a compiler: `execution` may change without changing what is computed.
LAPTOP = ["execution={accelerator: cpu, threads: 1, channels_last: true, checkpoint_every: 1}"]
SHORT = ["seeds=1", "train.epochs=1", "train.warmup_epochs=0", "export=null"]


def test_the_recipes_that_the_documentation_lists_are_shipped():
    assert set(shipped_recipes()) == LISTED


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for make, count in ((fashion_mnist, 20), (cifar10, 5)):
        (root / make.__name__).mkdir()
        make(root / make.__name__, count)
    image_folder(root / "folder", count=6)
    return root


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in sorted(LISTED)]
)
def test_shipped_recipe_runs_shortened(name, images, tmp_path):
    overrides = [*LAPTOP, *SHORT]
    source = load_recipe(name).data.name
    if source == "digits":
        overrides += ["data.image_size=8", "train.batch_size=512"]
    else:
        overrides += [f"data.root={images / source}", "train.batch_size=16"]
    if source == "folder":
        overrides += ["data.image_size=64", "data.classes=3"]
    console = Console(file=io.StringIO(), width=100)
    result = train(name, overrides, tmp_path, console=console)
    recipe = load_recipe(name)
    assert [variant.name for variant in result.variants] == list(recipe.variants)
    dense = result.dense
    for variant in result.variants:
        crop = recipe.variants[variant.name]
        ratio = crop.ratio or recipe.crop.ratio
        if crop.crop:
            assert variant.params <= ratio * dense.params
            assert variant.macs <= ratio * dense.macs
        assert (result.folder / variant.name / "seed0" / "model.safetensors").is_file()
    assert (result.folder / "report.html").is_file()
