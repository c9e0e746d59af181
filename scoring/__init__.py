"""Layerwise densities: what share of each layer's weights a budget is spent on."""
