from precrop.cropping.polynomial import Polynomial, product

A, B, C = (Polynomial.variable(v) for v in range(3))
TWO = Polynomial.constant(2)


def test_arithmetic_is_that_of_polynomials():
    assert (A + B) * (A - B) == A * A - B * B
    assert (A + TWO) - A == TWO
    assert (A - A).terms == {}
    assert product([3, A, 2, B]) == (A * B).scaled(6)
    assert product([3, 4]) == Polynomial.constant(12)


def test_exact_division():
    size = (A + B) * (A + C) * TWO
    assert size.divided_by(A + C) == (A + B) * TWO
    assert size.divided_by(A + B + C) is None
    assert A.divided_by(TWO) is None
    assert A.divided_by(Polynomial({})) is None


def test_primitive_drops_common_factors():
    assert (A * B - A * C).scaled(6).primitive() == B - C


def test_evaluate_and_substitute():
    size = A * B + TWO
    assert size.evaluate({0: 3, 1: 5}.__getitem__) == 17
    assert size.substituted({0: B + TWO}) == B * B + B * TWO + TWO


def test_kinds():
    assert (A + TWO).is_linear
    assert not (A * A).is_linear
    assert TWO.is_constant
    assert not A.is_constant
    assert (A.scaled(3) + TWO).coefficients() == {0: 3}
    assert (A * B + C).variables() == {0, 1, 2}
