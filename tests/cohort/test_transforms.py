"""Logicle against its equations, solved by plain root finding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from heatmover.cohort.transforms import Logicle
from heatmover.errors import InvalidInputError

SCALES = {
    "usual": (262144, 0.5, 4.5, 0),
    "ten bits": (1023, 0.5, 4.5, 0),
    "wide": (262144, 1.2, 4.5, 0),
    "widest": (262144, 2.25, 4.5, 0),
    "no linear part": (10000, 0, 4, 0),
    "room below": (10000, 0.5, 4.5, 1.0),
    "cut below": (10000, 1.0, 4.5, -0.5),
}


def biexponential(top, width, decades, negative):
    """The scale from its published conditions, each solved or checked by itself."""
    b = (decades + negative) * np.log(10)
    w, x2 = width / (decades + negative), negative / (decades + negative)
    x1 = x2 + w
    # The root below b; without a linear part it is b itself.
    d = b if w == 0 else brentq(lambda d: 2 * (np.log(d) - np.log(b)) + w * (d + b), 1e-12, b, xtol=1e-15, rtol=1e-15)
    ratio = (b / d) ** 2 * np.exp((b + d) * x1)  # c / a, for which the second derivative is zero at the value zero
    offset = np.exp(b * x1) - ratio * np.exp(-d * x1)  # f / a
    a = top / (np.exp(b) - ratio * np.exp(-d) - offset)
    return lambda x: a * (np.exp(b * x) - ratio * np.exp(-d * x) - offset)


@pytest.mark.parametrize("case", SCALES)
def test_the_scale_is_the_root_of_the_biexponential(case):
    parameters = SCALES[case]
    curve, top = biexponential(*parameters), parameters[0]
    values = np.r_[-top * np.logspace(-1, -7, 13), 0, top * np.logspace(-7, 0.7, 20)]
    roots = [brentq(lambda x, y=y: curve(x) - y, -3, 3, xtol=1e-15, rtol=1e-15) for y in values]
    np.testing.assert_allclose(Logicle(*parameters).apply(values), roots, atol=1e-11)


@pytest.mark.parametrize("case", SCALES)
def test_ends_zero_and_the_linear_part(case):
    top, width, decades, negative = SCALES[case]
    scale = Logicle(*SCALES[case])
    places = scale.apply(np.array([0.0, top]))
    np.testing.assert_allclose(places, [(width + negative) / (decades + negative), 1], atol=1e-12)
    around = places[0] + np.array([-1e-3, 0, 1e-3])
    below, zero, above = scale.inverse(around)
    assert abs(zero) < 1e-9 * top
    assert above + below == pytest.approx(0, abs=1e-4 * above)  # no curvature at zero


@given(st.lists(st.floats(-1e7, 1e7), min_size=1, max_size=20), st.floats(0, 2.25))
def test_back_and_forth_and_in_order(values, width):
    scale, values = Logicle(262144.0, width), np.sort(np.array(values))
    places = scale.apply(values)
    assert np.isfinite(places).all()
    assert (np.diff(places) >= -1e-13).all()
    np.testing.assert_allclose(scale.inverse(places), values, rtol=1e-9, atol=1e-6)


def test_what_is_no_number_stays_so():
    found = Logicle(1000.0).apply(np.array([np.nan, np.inf, -np.inf, 1000.0]))
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], [np.inf, -np.inf, 1])


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ((0.0,), "top"),
        ((1000.0, 3.0), "width from 0 to half of the decades, found 3 of 4.5"),
        ((1000.0, -0.1), "width from 0"),
        ((1000.0, 0.5, 0.0), "decades"),
        ((1000.0, 0.5, 4.5, 4.0), "-width <= negative <= decades - 2 width, found 4"),
    ],
)
def test_scales_that_cannot_be(parameters, sentence):
    with pytest.raises(InvalidInputError, match=sentence):
        Logicle(*parameters)
