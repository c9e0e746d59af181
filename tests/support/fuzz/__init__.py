"""Random networks, cropped to random budgets, each checked against the network built by hand at the new widths.

A network is a `Description` (`description.py`): blocks and the widths that they take as arguments. `blocks` builds
each kind of block, `generator.py` draws descriptions and requests, `checks.py` says what must hold of a crop
and `shrinking.py` makes a case that fails smaller. ``python -m fuzz`` runs a thousand (`make fuzz`).
"""
