r"""Which rule drew the tensors of a network, judged over all of them together.

A rule is a family of distributions, and a variance as a function of the fans. With :math:`k` for the squared gain:

===================  =====================================  =======================================================
law                  variance                               used by
===================  =====================================  =======================================================
fixed                :math:`k`                              ``normal_(std=.01)``, ``trunc_normal_(std=.02)``
fan in               :math:`k / \text{fan}_\text{in}`       PyTorch's default (:math:`k = 1/3`), LeCun (1), Kaiming (2)
fan out              :math:`k / \text{fan}_\text{out}`      Kaiming with ``mode="fan_out"``
fan out per group    :math:`k g / \text{fan}_\text{out}`    EfficientNets; :math:`g` groups
fan in of all        :math:`k / (g\,\text{fan}_\text{in})`  a fan that counts the inputs of every group
mean fan             :math:`2 k / (\text{fan}_\text{in} + \text{fan}_\text{out})`  Xavier (Glorot)
===================  =====================================  =======================================================

The families are uniform, normal, and normal cut off at two deviations (``trunc_normal_tf_``, JAX's initializers).
Their log-likelihoods need only the number of values, the second moment and the furthest value, so a tensor is five
numbers here. A uniform tensor shows its bound to one part in its number of values; of a normal one the variance is
known to :math:`\sqrt{2/n}`.

A tensor alone, of a bias most of all, fits many rules. So a network's tensors of one role are explained together, by
minimum description length: a tensor that no rule explains pays `OWN` nats for a spread of its own; a rule pays once
for all tensors that it explains, little when it is a usual one and more when its gain had to be found. The rule that
saves most is taken, then the next for the tensors left. At the end every tensor goes to the rule that is likeliest for
it, given how many of its kind each rule explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from precrop.cropping.spread import Spread

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fans:
    """Incoming and outgoing connections of one unit of a layer, and its groups."""

    incoming: int
    outgoing: int
    groups: int = 1


def fans_of(weight: torch.Size | tuple[int, ...], groups: int = 1) -> Fans:
    """Fans of a weight of shape (out, in / groups, *kernel), as `torch.nn.init` counts them.

    torch counts a transposed convolution's, of shape (in, out / groups, *kernel), in the same way.
    """
    receptive = math.prod(weight[2:])
    return Fans(weight[1] * receptive, weight[0] * receptive, groups)


#: Law to the variance that it gives at some fans with a gain of one.
LAWS: dict[str, Callable[[Fans], float]] = {
    "fixed": lambda fans: 1.0,
    "fan in": lambda fans: 1 / fans.incoming,
    "fan out": lambda fans: 1 / fans.outgoing,
    "fan out per group": lambda fans: fans.groups / fans.outgoing,
    "fan in of all": lambda fans: 1 / (fans.incoming * fans.groups),
    "mean fan": lambda fans: 2 / (fans.incoming + fans.outgoing),
}
_LAWS = tuple(LAWS)

#: Squared gains that `torch.nn.init.calculate_gain` and the usual initializers give, and how unusual (in nats).
GAINS: dict[float, float] = {1 / 3: 0.5, 2.0: 0.5, 1.0: 1.0, 25 / 9: 3.0, 9 / 16: 3.0, 2 / 1.04: 3.0, 0.5: 3.5}
_LAW_COSTS = {"fan in": 0.5, "fan out": 0.5, "fan out per group": 1.0, "fan in of all": 3.0, "mean fan": 0.7}

# Of a standard normal variable cut off at two deviations: its mass, its standard deviation, its kurtosis.
_MASS = math.erf(math.sqrt(2))
CUT = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / _MASS)
_CUT_KURTOSIS = (3 - (12 + 16) * math.exp(-2) / math.sqrt(2 * math.pi) / _MASS) / CUT**4

#: Family to its cost in nats, its kurtosis, and about how far the square root of n times a sample's kurtosis is off it.
FAMILIES: dict[str, tuple[float, float, float]] = {
    "uniform": (0.7, 1.8, 1.2),
    "normal": (0.7, 3.0, math.sqrt(24)),
    "truncated": (1.5, _CUT_KURTOSIS, 2.0),
}
BOUNDED = ("uniform", "truncated")
#: Neither: signs, a mixture with zeros, a heavy tail. Its values are resampled.
OTHER = "other"

#: What a tensor pays for a spread that no rule gives, in nats: 4.5 standard errors of a variance.
OWN = 10.0
# A tensor further than this off the likeliest rule keeps its own spread.
_FAR = 14.0
# Rules within this many nats of the best are not told apart by the network's tensors...
_CLOSE = 3.0
# ...which matters where the spreads that they give at the new size differ by more than this.
_SAME = math.log(1.1)


@dataclass(frozen=True)
class Rule:
    """A family, a law, the logarithm of the squared gain, the mean, and the description length in nats."""

    family: str
    law: str
    log_gain: float
    mean: float = 0.0
    cost: float = 0.0

    def variance(self, fans: Fans | None) -> float:
        """The variance that the rule gives at some fans."""
        return math.exp(self.log_gain) * (LAWS[self.law](fans) if fans is not None else 1.0)


@dataclass(frozen=True)
class Sample:
    """A tensor as evidence: its spread, its layer's fans (None where it has none), and the kind of its layer."""

    spread: Spread
    fans: Fans | None
    kind: str = ""


@dataclass(frozen=True)
class Verdict:
    """The rule of one tensor, and those that explain its network as well.

    ``shared`` says whether it is a rule at all, or the tensor's own spread since no rule gave it.
    """

    rule: Rule
    alternatives: tuple[Rule, ...] = ()
    shared: bool = True

    def disputed(self, fans: Fans | None) -> bool:
        """Whether laws that nothing tells apart give different spreads at these fans."""
        own = math.log(self.rule.variance(fans))
        others = (other for other in self.alternatives if other.law != self.rule.law)
        return any(abs(math.log(other.variance(fans)) - own) > _SAME for other in others)


def family_of(spread: Spread) -> str | None:
    """`OTHER` where a sample fits no family by its kurtosis and its ties, else None: the likelihood decides."""
    n = spread.samples
    if n >= 8 and spread.ends * n >= max(3.0, 4 * spread.grain * n):
        return OTHER
    if n >= 20 and spread.zeros > 0.05:
        return OTHER
    off = [abs(spread.kurtosis - kurtosis) * math.sqrt(n) / error for _, kurtosis, error in FAMILIES.values()]
    return OTHER if min(off) > 6 + 20 / math.sqrt(n) else None


class Evidence:
    """The samples of one role, as arrays over them (T)."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        """Lay out the samples, none of them constant."""
        spreads = [sample.spread for sample in samples]
        self.n = np.array([spread.samples for spread in spreads], float)
        self.mean = np.array([spread.mean for spread in spreads])
        self.variance = np.array([spread.variance for spread in spreads])
        self.low = np.array([spread.low for spread in spreads])
        self.high = np.array([spread.high for spread in spreads])
        self.grain = np.array([spread.grain for spread in spreads])
        kurtosis = np.array([spread.kurtosis for spread in spreads])
        self.other = np.array([family_of(spread) == OTHER for spread in spreads])
        # The variance of other distributions is known to sqrt((kurtosis - 1) / n): as if of so many normal values.
        self.effective = np.where(self.other, self.n * 2 / np.maximum(kurtosis - 1, 0.01), self.n)
        self.shifted = np.abs(self.mean) * np.sqrt(self.n) > 5 * np.sqrt(self.variance)
        self.has_fans = np.array([sample.fans is not None for sample in samples])
        # (L, T): the logarithm of the variance of each law at a gain of one
        self.laws = np.zeros((len(LAWS), len(samples)))
        for t, sample in enumerate(samples):
            if sample.fans is not None:
                self.laws[:, t] = [math.log(law(sample.fans)) for law in LAWS.values()]
        self.own = np.maximum(self._free(np.zeros_like(self.mean)), np.where(self.shifted, self._free(None), -np.inf))

    def __len__(self) -> int:
        return len(self.n)

    def second(self, mean: Array | float) -> Array:
        """The second moment about a mean."""
        return np.asarray(self.variance + (self.mean - mean) ** 2)

    def reach(self, mean: Array | float) -> Array:
        """How far the furthest value lies from a mean."""
        return np.asarray(np.maximum(self.high - mean, mean - self.low))

    def fitted(self, family: str, mean: Array | float) -> Array:
        """The logarithm of each sample's likeliest variance in a family."""
        second, reach = self.second(mean), self.reach(mean)
        if family == "uniform":
            return np.asarray(2 * np.log(reach) - math.log(3))
        if family == "truncated":
            return np.asarray(np.log(np.maximum(reach**2 / 4, second)) + 2 * math.log(CUT))
        return np.asarray(np.log(second))

    def likelihood(self, family: str, mean: Array | float, log_variance: Array) -> Array:
        """Each sample's log-likelihood (H, T) in a family at its variances (H, T), about means (H, 1)."""
        if family == OTHER:
            ratio = np.log(self.second(mean)) - log_variance
            return np.where(self.other, -self.effective / 2 * (np.exp(ratio) - ratio), -np.inf)
        if family in BOUNDED:  # the furthest value, and so the bound, is known no better than it is rounded
            fitted, slack = self.fitted(family, mean), 4 * self.grain
            log_variance = np.clip(fitted, log_variance - slack, log_variance + slack)
        deviation = log_variance / 2 - (math.log(CUT) if family == "truncated" else 0)
        if family == "uniform":
            bound = deviation + math.log(3) / 2
            value = -self.n * (bound + math.log(2))
        else:
            bound = deviation + math.log(2) if family == "truncated" else np.full_like(deviation, np.inf)
            mass = _MASS if family == "truncated" else 1.0
            scaled = self.second(mean) * np.exp(-2 * deviation)
            value = -self.n * (deviation + math.log(2 * math.pi) / 2 + scaled / 2 + math.log(mass))
        inside = np.log(self.reach(mean)) <= bound + 1e-9
        return np.where(inside & ~self.other, value, -np.inf)

    def _free(self, mean: Array | None) -> Array:
        """The highest log-likelihood of each sample with a spread of its own."""
        best = np.full(len(self), -np.inf)
        for family in (*FAMILIES, OTHER):
            about = self.centre(family) if mean is None else mean
            best = np.maximum(best, self.likelihood(family, about, self.fitted(family, about)))
        return best

    def centre(self, family: str) -> Array:
        """Each sample's own mean: the middle of the range of a uniform one."""
        return np.asarray((self.low + self.high) / 2 if family == "uniform" else self.mean)


@dataclass
class Rules:
    """Rules as arrays (H), and what each explains: ``gains`` (H, T) in nats over a spread of the tensor's own."""

    rules: list[Rule] = field(default_factory=list)
    gains: Array = field(default_factory=lambda: np.zeros((0, 0)))

    @classmethod
    def judged(cls, rules: list[Rule], evidence: Evidence) -> Rules:
        """The rules with what they explain of the evidence."""
        likelihoods = np.full((len(rules), len(evidence)), -np.inf)
        for family in {rule.family for rule in rules}:
            rows = [h for h, rule in enumerate(rules) if rule.family == family]
            means = np.array([[rules[h].mean] for h in rows])
            laws = evidence.laws[[_LAWS.index(rules[h].law) for h in rows]]
            gains = np.array([[rules[h].log_gain] for h in rows])
            likelihoods[rows] = evidence.likelihood(family, means, laws + gains)
        return cls(rules, likelihoods - evidence.own + OWN)

    def __add__(self, other: Rules) -> Rules:
        return Rules(self.rules + other.rules, np.concatenate([self.gains, other.gains]))

    def scores(self, left: npt.NDArray[np.bool_]) -> Array:
        """What each rule saves over the tensors left."""
        costs = np.array([rule.cost for rule in self.rules])
        return np.asarray((np.maximum(self.gains, 0) * left).sum(1) - costs)


def explain(samples: Sequence[Sample]) -> list[Verdict]:
    """The rule of each tensor of a role, judged over all of them."""
    evidence = Evidence(samples)
    usual = Rules.judged(_usual(bool(evidence.other.any())) if evidence.has_fans.all() else [], evidence)
    left = np.ones(len(samples), bool)
    taken: list[int] = []
    alternatives: dict[Rule, tuple[Rule, ...]] = {}
    found = Rules([], np.zeros((0, len(samples))))
    while left.any():
        rules = usual + Rules.judged(_measured(evidence, left), evidence)
        scores = rules.scores(left)
        best = int(scores.argmax())
        if scores[best] <= 0:
            break
        explained = left & (rules.gains[best] > 0)
        close = rules.scores(explained) >= rules.scores(explained)[best] - _CLOSE
        alternatives[rules.rules[best]] = tuple(
            rule for h, rule in enumerate(rules.rules) if close[h] and h != best and rule.mean == rules.rules[best].mean
        )
        found = found + Rules([rules.rules[best]], rules.gains[best : best + 1])
        taken.append(best)
        left &= ~explained
    return [
        Verdict(found.rules[h], alternatives[found.rules[h]]) if h is not None else _own(evidence, t)
        for t, h in enumerate(_assigned(found, [sample.kind for sample in samples]))
    ]


def _assigned(found: Rules, kinds: list[str]) -> list[int | None]:
    """The likeliest rule of each tensor, given the share of the tensors of its kind that each rule has."""
    if not found.rules:
        return [None] * len(kinds)
    index = [sorted(set(kinds)).index(kind) for kind in kinds]
    assigned = found.gains.argmax(0)
    for _ in range(3):
        counts = np.full((max(index) + 1, len(found.rules)), 0.5 / len(found.rules))
        far = found.gains.max(0) < OWN - _FAR
        np.add.at(counts, (np.array(index)[~far], assigned[~far]), 1.0)
        shares = np.log(counts / counts.sum(1, keepdims=True))
        assigned = (found.gains + shares[index].T).argmax(0)
    chosen = found.gains[assigned, np.arange(len(kinds))]
    return [int(h) if gain >= OWN - _FAR else None for h, gain in zip(assigned, chosen, strict=True)]


def _own(evidence: Evidence, t: int) -> Verdict:
    """The spread of a tensor that no rule explains."""
    best = -math.inf
    rule = Rule("normal", "fixed", 0.0)
    for family in (*FAMILIES, OTHER):
        mean = evidence.centre(family) if evidence.shifted[t] else np.zeros(len(evidence))
        fitted = evidence.fitted(family, mean)
        likelihood = float(evidence.likelihood(family, mean, fitted)[t])
        if likelihood > best:
            best, rule = likelihood, Rule(family, "fixed", float(fitted[t]), float(mean[t]))
    return Verdict(rule, shared=False)


# -- rules worth a trial ------------------------------------------------------------


@cache
def _usual(other: bool) -> list[Rule]:
    """The rules of the usual initializers, which need fans; also of other distributions than the usual."""
    rules = [Rule("uniform", "fan in", math.log(1 / 3))]  # PyTorch's own, at no cost
    families = {family: cost for family, (cost, *_) in FAMILIES.items()}
    if other:
        families[OTHER] = 2.0
    for family, of_family in families.items():
        for law, of_law in _LAW_COSTS.items():
            for gain, of_gain in GAINS.items():
                if gain == 1 / 3 and family != "uniform":  # PyTorch's, by way of a slope of sqrt(5)
                    of_gain += 3
                rules.append(Rule(family, law, math.log(gain), cost=of_family + of_law + of_gain))
                if family == "truncated":  # a spread given for the normal distribution before it is cut off
                    rules.append(Rule(family, law, math.log(gain * CUT**2), cost=1 + of_family + of_law + of_gain))
    return rules


def _measured(evidence: Evidence, left: npt.NDArray[np.bool_]) -> list[Rule]:
    """Rules with a gain that tensors left agree about, and round numbers near it for fixed spreads."""
    rules: list[Rule] = []
    rows = np.flatnonzero(left)
    families = [OTHER] * bool(evidence.other[rows].any()) + list(FAMILIES) * bool((~evidence.other[rows]).any())
    laws = _LAWS if evidence.has_fans.all() else ("fixed",)
    for family in families:
        members = rows[evidence.other[rows] == (family == OTHER)]
        for mean in _means(evidence, members, family):
            fitted = evidence.fitted(family, mean)[members]
            error = _errors(evidence, family)[members]
            for law in laws if mean == 0 else ("fixed",):
                for log_gain in _agreed(family, fitted - evidence.laws[_LAWS.index(law), members], error):
                    rules.append(Rule(family, law, log_gain, mean, OWN + 1 + (law != "fixed")))
                    if law == "fixed":
                        rules += _rounded(rules[-1])
    return list(dict.fromkeys(rules))


def _means(evidence: Evidence, members: npt.NDArray[np.intp], family: str) -> list[float]:
    """Zero, and the mean of the largest sample that is not centred at zero, rounded where it may be round."""
    shifted = members[evidence.shifted[members]]
    if not len(shifted):
        return [0.0]
    largest = shifted[evidence.n[shifted].argmax()]
    centre, error = evidence.centre(family), np.sqrt(evidence.variance / evidence.n)
    near = shifted[np.abs(centre[shifted] - centre[largest]) < 5 * (error[shifted] + error[largest])]
    precision = error[near] ** -2.0
    mean, spread = float((centre[near] * precision).sum() / precision.sum()), float(precision.sum() ** -0.5)
    close = [value for value in (_round(mean, 1), _round(mean, 2)) if abs(value - mean) < 3 * spread]
    return [0.0, *(close[:1] or [mean])]


def _errors(evidence: Evidence, family: str) -> Array:
    """How far the logarithm of a sample's likeliest variance is off, nearly always."""
    if family in BOUNDED:
        return np.asarray(2 * OWN / evidence.n + 4 * evidence.grain)
    return np.asarray(4 * np.sqrt(2 / evidence.effective))


def _agreed(family: str, log_gains: Array, errors: Array) -> list[float]:
    """Logarithms of squared gains that samples agree about: those of the surest samples, and of some others."""
    surest = np.argsort(errors)
    seeds = np.unique(np.concatenate([surest[:4], surest[:: max(1, len(surest) // 4)]]))
    agree = np.abs(log_gains - log_gains[seeds, None]) < errors + errors[seeds, None]  # (seeds, T)
    if family in BOUNDED:  # a bound is the furthest value of all
        return list(dict.fromkeys(np.where(agree, log_gains, -np.inf).max(1).tolist()))
    weights = agree * errors**-2.0
    return list(dict.fromkeys(((weights * log_gains).sum(1) / weights.sum(1)).tolist()))


def _rounded(rule: Rule) -> list[Rule]:
    """The same with a round deviation (a uniform distribution's: a round bound), as people write them."""
    # What people write down: a bound, the deviation of a normal distribution before it is cut off.
    unit = {"uniform": math.sqrt(3), "truncated": 1 / CUT}.get(rule.family, 1.0)
    written = math.exp(rule.log_gain / 2) * unit
    rules = []
    for digits in (1, 2):
        value = _round(written, digits)
        candidates = [value]
        if rule.family in BOUNDED:  # the furthest value lies below the bound
            step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
            candidates += [_round(value + step, digits)]
        for candidate in candidates:
            lead = f"{candidate:.{digits - 1}e}"[: digits + (digits > 1)]
            cost = OWN if digits == 2 and not lead.endswith("0") else 2.5 if lead[0] in "125" else 4.0
            family_cost = FAMILIES.get(rule.family, (2.0,))[0]
            rules.append(replace(rule, log_gain=2 * math.log(candidate / unit), cost=cost + family_cost))
    return rules


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")
