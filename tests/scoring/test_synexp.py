import numpy as np
import pytest

from precrop.scoring.synexp import densities, log_densities

PARAMS = np.array([9 * 3 * 16, 9 * 16 * 32, 9 * 32 * 64, 9 * 64 * 64, 640], float)
MACS = PARAMS * np.array([1024, 256, 256, 64, 1], float)


def objective_cannot_rise(p, cost, budget):
    """No move that keeps the cost and stays in (0, 1] raises the sum of log densities."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        q = np.clip(p * np.exp(rng.normal(0, 0.05, len(p))), 1e-9, 1)
        q = np.clip(q * budget / (cost @ q), 0, 1)
        if cost @ q <= budget * (1 + 1e-9):
            assert np.log(q).sum() <= np.log(p).sum() + 1e-9


@pytest.mark.parametrize("budget", [0.05, 0.3, 0.8])
def test_one_budget_is_met_and_optimal(budget):
    p = densities(PARAMS, MACS, params_budget=budget)
    assert PARAMS @ p == pytest.approx(budget * PARAMS.sum())
    objective_cannot_rise(p, PARAMS, budget * PARAMS.sum())


def test_both_budgets_are_met_and_optimal_by_scipy():
    from scipy.optimize import minimize

    p = densities(PARAMS, MACS, 0.5, 0.5)
    assert PARAMS @ p == pytest.approx(0.5 * PARAMS.sum())
    assert MACS @ p == pytest.approx(0.5 * MACS.sum())
    found = minimize(
        lambda q: -np.log(q).sum(),
        np.full(len(p), 0.2),
        jac=lambda q: -1 / q,
        bounds=[(1e-6, 1)] * len(p),
        constraints=[
            {"type": "ineq", "fun": lambda q: 0.5 - PARAMS @ q / PARAMS.sum()},
            {"type": "ineq", "fun": lambda q: 0.5 - MACS @ q / MACS.sum()},
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert p == pytest.approx(found.x, rel=1e-4)


def test_a_cap_that_never_binds_changes_nothing():
    assert densities(PARAMS, MACS, 0.2, 1.0) == pytest.approx(densities(PARAMS, MACS, 0.2), rel=1e-6)


def test_a_higher_level_keeps_less_everywhere():
    log_p = log_densities(PARAMS, MACS, np.geomspace(0.1, 1e4, 50), 0.4)
    assert (np.diff(log_p, axis=0) <= 0).all()
    assert (log_p <= 0).all()


def test_widening_lifts_the_limit():
    assert log_densities(PARAMS, MACS, np.array([1e-3]), 0.0, widen=True).max() > 0
