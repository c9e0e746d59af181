"""A run's page and plots, of a run with crops and masks and two seeds."""

import io
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from rich.console import Console
from safetensors.torch import load_file

import precrop
from precrop.recipes import Recipe, train

VARIANTS = {
    "dense": {"crop": False},
    "snip": {"scorer": "snip"},
    "tiny": {"ratio": 0.05, "scorer": "uniform"},
    "mask": {"scorer": "snip", "weights": "mask"},
    "shuffled": {"scorer": "snip", "weights": "mask", "mask": "shuffled"},
    "reinit": {"scorer": "snip", "weights": "mask", "reinit": True},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    recipe = Recipe.model_validate(
        {
            "name": "report",
            "seeds": 2,
            "model": {"name": "precrop/resnet20"},
            "crop": {"ratio": 0.25},
            "data": {"name": "digits"},
            "train": {"epochs": 1, "batch_size": 479},
            "execution": {"accelerator": "cpu", "threads": 1},
            "variants": VARIANTS,
        }
    )
    return train(recipe, (), tmp_path_factory.mktemp("runs"), console=Console(file=io.StringIO()))


VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.tags, self.addresses = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for key, value in attributes if key in ("src", "href") and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.addresses += [value for key, value in attributes if key in ("src", "href") and value]


def test_the_page_is_whole_and_needs_nothing_beside_it(result):
    text = (result.folder / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert not page.open
    assert page.tags.count("svg") == 2
    assert all(address.startswith("#") for address in page.addresses)
    assert not re.search(r"https?://|url\((?!#)|@import|<script", text)
    for variant in result.variants:
        assert variant.name in text
        assert f"{variant.accuracy:.2%} ± {variant.accuracy_std:.2%}" in text
    assert result.recipe.digest() in text
    layers = len(precrop.CropPlan.load(result.folder / "snip" / "seed0" / "plan.json").layers)
    assert text.count('class="bar"') == layers * (len(VARIANTS) - 1)


def test_the_plots_are_pictures(result):
    assert (result.folder / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    root = ElementTree.parse(result.folder / "accuracy.svg").getroot()
    words = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"accuracy, %", "parameters", "MACs for one image", *VARIANTS} <= words


def test_masks_keep_the_scorers_shares(result):
    rows = {row["variant"]: row for row in json.loads((result.folder / "metrics.json").read_text())["variants"]}
    masks = {
        name: load_file(result.folder / name / "seed0" / "mask.safetensors") for name in ("mask", "shuffled", "reinit")
    }
    counts = {name: {key: int(mask.sum()) for key, mask in found.items()} for name, found in masks.items()}
    assert counts["mask"] == counts["shuffled"] == counts["reinit"]
    weights = sum(mask.numel() for mask in masks["mask"].values())
    assert sum(counts["mask"].values()) == pytest.approx(0.25 * weights, abs=len(counts["mask"]))
    for name, found in masks.items():
        trained = precrop.load(result.folder / name / "seed0" / "model.safetensors")
        assert trained.crop_plan.params_ratio == 1
        for key, mask in found.items():
            assert not trained.get_parameter(key)[~mask].any()
        removed = sum(int((~mask).sum()) for mask in found.values())
        assert rows[name]["params"] == pytest.approx(rows["dense"]["params"] - removed, rel=1e-3)
        assert rows[name]["macs"] < rows["dense"]["macs"]
    assert any(not masks["mask"][key].equal(masks["shuffled"][key]) for key in masks["mask"])
    assert all(masks["mask"][key].equal(masks["reinit"][key]) for key in masks["mask"])
