"""Map the repository's stage folders into the one package ``precrop``."""

from setuptools import find_packages, setup

STAGES = ("scoring", "cropping", "recipes", "export")


def stage_packages() -> list[str]:
    """Every importable folder of a stage, under the name it is imported as."""
    found = [f"precrop.{stage}" for stage in STAGES]
    for stage in STAGES:
        found += [f"precrop.{stage}.{inner}" for inner in find_packages(stage)]
    return found


setup(
    packages=["precrop", *stage_packages()],
    package_dir={"precrop": "precrop", **{f"precrop.{stage}": stage for stage in STAGES}},
    include_package_data=False,
    package_data={"precrop": ["py.typed"], "precrop.recipes": ["configs/*.yaml"]},
)
