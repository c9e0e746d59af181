"""Trace a network's widths, allocate a budget over them, build the smaller network."""

if __name__ == "cropping":  # imported by its folder's name, in a checkout: a second copy of the package
    raise ModuleNotFoundError("cropping is a part of precrop: import precrop.cropping", name=__name__)
