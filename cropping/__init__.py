"""Trace a network's widths, allocate a budget over them, build the smaller network."""
