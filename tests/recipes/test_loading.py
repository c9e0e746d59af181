import re

import pytest
import yaml

from precrop.errors import RecipeError
from precrop.recipes import dump_recipe, load_recipe, shipped_recipes

GOOD = """\
name: tiny
model:
  name: precrop/resnet20
crop: {params: 0.5}
data:
  name: digits
train:
  epochs: 3
  lr: 1e-2
variants:
  dense: {crop: false}
  cropped: {}
"""

FAULTY = """\
name: a b
model:
  nam: precrop/resnet20
crop:
  ratio: 4
  scorrer: synexp
data: {name: digit}
train:
  epoch: 3
  epochs: 2.5
  lr: fast
  schedule: cosin
  optimizer: adamww
execution: {threads: true, workers: 1, workers: 2}
variants:
  dense: {crop: false, scorer: uniform}
  half: 3
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


def faults_of(source, overrides=()):
    with pytest.raises(RecipeError) as caught:
        load_recipe(source, overrides)
    title, *faults = str(caught.value).splitlines()
    return title, [fault.strip() for fault in faults]


def test_every_fault_comes_at_once_with_its_line(write):
    title, faults = faults_of(write(FAULTY))
    expected = [
        r"line 1: name: expected a folder's name: .*got 'a b' \(text\)",
        r"line 2: model\.name: missing",
        r"line 3: model\.nam: unknown key; did you mean 'name'\? \(known here: name, kwargs\)",
        r"line 5: crop\.ratio: expected the share kept, .*for 4x compression write 0\.25\), got 4",
        r"line 6: crop\.scorrer: unknown key; did you mean 'scorer'\?",
        r"line 7: data\.name: expected one of 'digits', 'fashion_mnist', .*, got 'digit' \(text\)",
        r"line 9: train\.epoch: unknown key; did you mean 'epochs'\?",
        r"line 10: train\.epochs: expected a whole number, got 2\.5 \(a number\)",
        r"line 11: train\.lr: expected a number, got 'fast' \(text\)",
        r"line 12: train\.schedule: expected 'cosine', 'poly', 'multistep' or 'constant', got 'cosin' \(text\)",
        r"line 13: train\.optimizer: expected an optimizer of timm, such as 'adamw'.*, got 'adamww'",
        r"line 14: execution\.threads: expected a whole number, got True \(true or false\)",
        r"line 14: execution\.workers: given twice; the first is on line 14",
        r"line 16: variants\.dense\.scorer: expected no scorer beside 'crop: false', got 'uniform'",
        r"line 17: variants\.half: expected a section \(lines of 'key: value'\), got 3 \(a whole number\)",
    ]
    assert title.endswith(f"recipe.yaml has {len(expected)} faults:")
    assert len(faults) == len(expected)
    for fault, pattern in zip(faults, expected, strict=True):
        assert re.match(pattern, fault), fault


def test_faults_of_overrides_name_the_override(write):
    overrides = ["train.lrr=1", "epochs", "train.epochs.x=1", "seed=-1", "data.image_size=["]
    title, faults = faults_of(write(GOOD), overrides)
    assert title.endswith("has 5 faults:")
    assert any(f.startswith("override 'train.lrr=1': train.lrr: unknown key; did you mean 'lr'?") for f in faults)
    assert any(f.startswith("override 'epochs': expected section.key=value") for f in faults)
    assert "override 'train.epochs.x=1': train.epochs is 3, not a section" in faults
    assert "override 'seed=-1': seed: expected at least 0, got -1 (a whole number)" in faults
    assert "override 'data.image_size=[': '[' is not a YAML value" in faults


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("crop.ratio=0.5", "not both"),
        ("crop.params=null", "expected a budget"),
        ("crop=null", "expected a 'crop' section with a budget for cropped"),
        ("crop.params=.nan", "expected a finite number"),
        ("train.lr=.inf", "expected a finite number"),
        ("train.warmup_epochs=3", "expected fewer than the 3 epochs"),
        ("train={epochs: 2, batch_size: 5, mixup: 0.2}", "expected an even batch_size"),
        ("name=../up", "expected a folder's name"),
        ("variants={../up: {}}", "expected a folder's name"),
        ("export={to: []}", "expected at least 1 entries"),
        ("export={to: [tflite]}", "expected 'onnx', 'openvino' or 'tensorrt', got 'tflite'"),
        ("export={to: [onnx, onnx]}", "expected each format once"),
        ("export={precision: fp8}", "expected 'fp32', 'fp16', 'bf16' or 'int8', got 'fp8'"),
        ("export={batch: [0]}", "expected at least 1, got 0"),
        ("export={latency: {backend: tflite}}", "expected one of 'onnxruntime', 'openvino', 'torch'"),
        ("export={precision: bf16}", r"a backend that runs bf16 \('openvino', 'torch', .*; onnxruntime does not"),
        ("crop.scorer=snipp", "expected one of 'synexp', 'uniform', .*\\(did you mean 'snip'"),
        ("train.milestones=[2]", "beside 'schedule: multistep' and only there"),
        ("train.schedule=multistep", "the epochs at which the rate drops"),
        ("execution.activation_memory=0.5", "expected 'compile: true' beside it"),
        ("execution.precision=16", "expected 32, 'bf16' or 'fp16', got 16"),
        ("variants.cropped={mask: shuffled}", "expected 'weights: mask' beside it"),
        ("variants.cropped={reinit: true}", "expected 'weights: mask' beside it"),
        ("variants.dense={crop: false, weights: mask}", "expected no mask beside 'crop: false'"),
        ("variants.dense={crop: false, params: 0.5}", "expected no params beside 'crop: false'"),
        ("variants.cropped={ratio: 0.5, macs: 0.5}", "not both"),
        ("data.name=hfds/", "expected one of 'digits'"),
        ("data.augment.crop=random", "expected 'none', 'pad' or 'resized', got 'random'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(write, override, fault):
    _, faults = faults_of(write(GOOD), [override])
    assert len(faults) == 1
    assert re.search(fault, faults[0]), faults[0]


def test_good_recipe_and_overrides(write):
    recipe = load_recipe(write(GOOD), ["train.epochs=5", "crop={macs: 0.25}", "execution.threads=2"])
    assert recipe.train.lr == 0.01  # YAML 1.1 would read 1e-2 as text
    assert recipe.train.epochs == 5
    assert recipe.crop.macs == 0.25
    assert recipe.crop.params is None
    assert recipe.execution.threads == 2
    assert [variant.crop for variant in recipe.variants.values()] == [False, True]


def test_variants_follow_the_crop_section_when_left_out(write):
    text = GOOD[: GOOD.index("variants")]
    assert [*load_recipe(write(text)).variants] == ["cropped"]
    assert [*load_recipe(write(text), ["crop=null"]).variants] == ["dense"]


def test_resolved_recipe_reads_back_equal(write, tmp_path):
    recipe = load_recipe(write(GOOD), ["export={}"])
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(dump_recipe(recipe))
    again = load_recipe(resolved)
    assert again == recipe
    assert again.digest() == recipe.digest()
    assert yaml.safe_load(resolved.read_text())["train"]["momentum"] == 0.9


def test_the_digest_is_of_what_is_computed(write):
    """A run moved to another machine is found again; one that computes something else is another run."""
    recipe = load_recipe(write(GOOD))
    same = [
        "execution={precision: bf16, devices: 4, accumulate: 2}",
        "data.root=/elsewhere",
        "data.download=true",
        "seeds=3",
        "export={latency: {repeats: 7}}",
    ]
    for override in same:
        assert load_recipe(recipe, [override]).digest() == recipe.digest(), override
    others = ["seed=1", "train.batch_size=32", "crop.params=0.4", "data.image_size=8", "variants.half={params: 0.2}"]
    digests = {load_recipe(recipe, [override]).digest() for override in others}
    assert len(digests | {recipe.digest()}) == len(others) + 1


def test_the_digest_follows_a_networks_own_file(write, tmp_path):
    file = tmp_path / "net.py"
    overrides = [f"model.name={file}:build"]
    file.write_text("a = 1")
    before = load_recipe(write(GOOD), overrides).digest()
    assert load_recipe(write(GOOD), overrides).digest() == before
    file.write_text("a = 2")
    assert load_recipe(write(GOOD), overrides).digest() != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", r"is not YAML: line 1"),
        ("name: x\nmodel: a: b\n", r"is not YAML: line 2"),
        ("", r"is not a recipe: expected sections"),
        ("- name", r"is not a recipe: expected sections"),
        ("name: !!python/object:os.system {}", r"is not a recipe: line 1"),
    ],
)
def test_what_is_not_a_recipe_is_said(write, text, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(text))


def test_unknown_recipe_lists_the_shipped_ones(tmp_path):
    with pytest.raises(RecipeError, match=r"absent\.yaml does not exist\..*digits"):
        load_recipe(tmp_path / "absent.yaml")
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path)


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipe_is_read_and_opens_with_its_command(name):
    path = shipped_recipes()[name]
    assert load_recipe(name) == load_recipe(path)
    assert load_recipe(name).name == name
    opening = path.read_text().partition("\nname:")[0]
    assert f"precrop train recipes/configs/{name}.yaml" in opening
    assert all(line.startswith("#") for line in opening.splitlines())
