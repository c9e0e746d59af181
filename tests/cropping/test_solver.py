import pytest

from precrop.cropping.polynomial import Polynomial
from precrop.cropping.solver import Solver


@pytest.fixture
def solver():
    return Solver()


def number(n):
    return Polynomial.constant(n)


def test_equal_widths_are_tied_and_the_older_stays(solver):
    a, b = solver.fresh(16), solver.fresh(16)
    assert solver.equate(a, b)
    assert solver.resolve(b) == a


def test_different_sizes_are_refused_and_nothing_is_tied(solver):
    a, b = solver.fresh(16), solver.fresh(8)
    assert not solver.equate(a, b)
    assert solver.known == {}


def test_a_width_equal_to_a_sum_becomes_the_sum(solver):
    a, b, whole = solver.fresh(16), solver.fresh(8), solver.fresh(24)
    solver.equate(whole, a + b)
    assert solver.resolve(whole) == a + b


def test_two_sums_pair_off_by_size(solver):
    a, b, c, d = (solver.fresh(n) for n in (16, 32, 32, 16))
    solver.equate(a + b, c + d)
    assert solver.resolve(d) == a
    assert solver.resolve(c) == b


def test_two_sums_with_other_borders_are_cut_into_common_pieces(solver):
    a, b, c, d = (solver.fresh(n) for n in (16, 8, 10, 14))
    solver.equate(a + b, c + d)
    assert solver.resolve(a + b) == solver.resolve(c + d)
    assert solver.pinned == {}
    assert len(solver.resolve(a + b).variables()) == 3  # 10, 6 and 8
    assert [solver.hint(solver.resolve(size)) for size in (a, b, c, d)] == [16, 8, 10, 14]


def test_a_number_pins_and_keeps_the_line(solver):
    a = solver.fresh(16)
    solver.equate(a, number(16))
    (origin,) = solver.pinned.values()
    assert solver.value(a) == 16
    assert origin.file.endswith("test_solver.py")


def test_a_sum_with_a_fixed_total_is_pinned_whole(solver):
    a, b = solver.fresh(4), solver.fresh(12)
    solver.equate(a + b, number(16))
    assert (solver.value(a), solver.value(b)) == (4, 12)


def test_division_makes_a_multiple(solver):
    a = solver.fresh(12)
    third = solver.divide(a, 3)
    assert solver.hint(third) == 4
    assert solver.resolve(a) == third.scaled(3)


def test_division_of_two_equal_halves_ties_them(solver):
    a, b = solver.fresh(29), solver.fresh(29)
    assert solver.divide(a + b, 2) == a
    assert solver.resolve(b) == a


def test_division_that_does_not_come_out_pins(solver):
    a = solver.fresh(13)
    assert solver.divide(a, 4) == number(3)
    assert solver.value(a) == 13


def test_rounding_up_is_floor_division_of_the_part_that_varies(solver):
    a = solver.fresh(16)  # what torch.chunk(2) computes: (a + 1) // 2
    assert solver.hint(solver.divide(a + number(1), 2)) == 8


def test_division_by_a_width(solver):
    a, b = solver.fresh(104), solver.fresh(26)
    assert solver.floor_divide(a, b) == number(4)
    assert solver.resolve(a) == b.scaled(4)
    c = solver.fresh(5)
    assert solver.floor_divide((b * c).scaled(6), b) == c.scaled(6)


def test_a_multiple_equal_to_a_width(solver):
    a, b = solver.fresh(8), solver.fresh(16)
    solver.equate(a.scaled(2), b)
    assert solver.resolve(b) == a.scaled(2)


def test_common_factors_do_not_hide_an_equality(solver):
    a, b, height = solver.fresh(8), solver.fresh(8), solver.fresh(7)
    solver.equate(a * height * number(14), b * height * number(14))
    assert solver.resolve(b) == a
    assert solver.value(height) is None


def test_minimum_follows_a_substitution(solver):
    a, b = solver.fresh(12), solver.fresh(4)
    solver.at_least(a, 8)
    solver.equate(a, b.scaled(3))
    assert solver.minimum == {1: 3}


def test_an_order_that_a_branch_asks_for_stays(solver):
    wide, narrow, other = solver.fresh(24), solver.fresh(16), solver.fresh(16)
    solver.order(narrow, wide, strict=True)
    assert solver.is_positive(wide - narrow)
    solver.order(number(8), other, strict=True)
    assert solver.minimum == {2: 9}
    solver.order(narrow, other, strict=False)  # equal now: nothing between them can vary
    assert solver.value(narrow) == solver.value(other) == 16
