"""Weighted chi-squares against closed forms and moments."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from attnlimit.numerics.chi2 import weighted_chi2

F64 = {"dtype": torch.float64}


@pytest.mark.parametrize("dof", [1, 2, 3, 10, 50, 768])
@pytest.mark.parametrize("weight", [1.0, 1e-3])
def test_equal_weights_are_a_scaled_chi2(dof, weight):
    q = torch.logspace(-6, 2.5, 60, **F64) * dof * weight
    result = weighted_chi2(q, torch.full((dof,), weight, **F64))
    expected = torch.as_tensor(stats.chi2(dof, scale=weight).logpdf(q.numpy()))
    assert torch.allclose(result.log_pdf, expected, rtol=1e-11, atol=1e-11)
    assert torch.allclose(result.conditional, q, rtol=1e-12)  # b are the other weights by default


def test_pairs_are_hypoexponential():
    """Each weight twice: a sum of two exponentials of means 2b, with relative accuracy in both tails."""
    q = torch.logspace(-6, 2.5, 60, **F64)
    result = weighted_chi2(q, torch.tensor([1.0, 1.0, 0.3, 0.3], **F64))
    expected = -q / 2 + torch.log(-torch.expm1(-q / 0.6 + q / 2)) - torch.log(torch.tensor(1.4, **F64))
    assert torch.allclose(result.log_pdf, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("weights", [[1.0], [4.0, 1e-3, 1e-3], [1.0, 0.9, 0.5, 0.1, 0.01]])
def test_mass_mean_and_conditional_mean(weights):
    """∫p = 1, ∫qp = Σb, and E over q of E[Σ c_i g_i² | q] = Σ c_i."""
    b = torch.tensor(weights, **F64)
    c = torch.arange(1.0, len(b) + 1, **F64)
    y = torch.linspace(-60, 6, 3000, **F64)
    result = weighted_chi2(y.exp(), b, c)
    mass = torch.exp(result.log_pdf + y) * (y[1] - y[0])
    assert float(mass.sum()) == pytest.approx(1, rel=1e-10)
    assert float(mass @ y.exp()) == pytest.approx(float(b.sum()), rel=1e-10)
    assert float(mass @ result.conditional) == pytest.approx(float(c.sum()), rel=1e-10)
