import numpy as np
import pytest

from precrop.export.timing import interleaved_ms, realised_share, speedup


def test_networks_run_in_turns_and_the_first_passes_are_not_counted():
    """In every round each runs twice in a row, of which the second counts; the warm-up round counts for none."""
    ran, told = [], []
    counted = {"dense": [10, 20, 90], "cropped": [5, 6, 4], "uniform": [7, 7, 7]}
    times_ms = {name: iter([900, 900, *(ms for one in taken for ms in (900, one))]) for name, taken in counted.items()}

    def timer(name):
        def once():
            ran.append(name)
            return next(times_ms[name])

        return once

    taken = interleaved_ms([timer(name) for name in times_ms], 1, 3, lambda done, of: told.append((done, of)))
    assert taken.tolist() == [[10, 5, 7], [20, 6, 7], [90, 4, 7]]
    assert ran[::2] == ran[1::2]
    rounds = [ran[start : start + 6 : 2] for start in range(0, 24, 6)]
    assert all(sorted(names) == sorted(times_ms) for names in rounds)
    assert [names[0] for names in rounds[1:]] == ["dense", "cropped", "uniform"]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_speedup_is_the_median_over_rounds_not_of_medians():
    reference, own = np.array([10.0, 30.0, 20.0]), np.array([5.0, 10.0, 40.0])
    found = speedup(reference, own)
    assert found.median == pytest.approx(2.0)  # of 2, 3 and 0.5
    assert (found.low, found.high) == pytest.approx((0.65, 2.9))
    assert speedup(reference[:2], np.array([40.0, 15.0])).median == pytest.approx(
        (0.25 + 2) / 2
    )  # the medians: 20 / 27.5
    # Rounds in which the machine was slow for both leave it as it is.
    drift = np.array([1.0, 7.0, 3.0])
    assert speedup(reference * drift, own * drift) == found


@pytest.mark.parametrize(
    ("faster", "macs_ratio", "share"), [(2.0, 0.5, 1.0), (1.0, 0.5, 0.5), (1.0, 1.0, 1.0), (3.0, 0.25, 0.75)]
)
def test_the_realised_share_is_the_speedup_over_what_the_macs_promise(faster, macs_ratio, share):
    assert realised_share(faster, macs_ratio) == pytest.approx(share)
    assert realised_share(faster, macs_ratio) == pytest.approx(faster / (1 / macs_ratio))
