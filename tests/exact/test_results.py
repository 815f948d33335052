"""Results are plain data: they pickle, their records are JSON, and they tell of themselves in one line."""

import copy
import json
import pickle

import pytest
import torch

import attnlimit as al

HEAD = al.Head(0.5 * torch.eye(2, dtype=torch.float64))
LAW = al.Gaussian(dim=2)
TOKENS = LAW.sample(40, generator=0)
X = torch.linspace(-1, 1, 40, dtype=torch.float64).reshape(20, 2)
MADE = {
    "exact error": lambda: al.exact_error(HEAD, LAW, [4, 16], X),
    "designs": lambda: al.design_errors(HEAD, TOKENS, [4, 16], X),
    "gradients": lambda: al.gradient_error(HEAD, LAW, [4, 16], X),
    "two queries": lambda: al.two_query_covariance(HEAD, LAW, [4, 16], X[0], X[1]),
    "heavy tails": lambda: al.heavy_tails(al.Head([[1.0]]), al.Laplace(1), [2.0], [10, 100]),
    "error law": lambda: al.error_law(al.Head([[1.0]]), al.Gaussian(dim=1), 10, [1.0]),
}


@pytest.mark.parametrize("name", MADE)
def test_results_pickle_and_are_told_in_one_line(name: str) -> None:
    found = MADE[name]()
    record = json.dumps(found.to_dict(), allow_nan=False)
    for back in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert json.dumps(back.to_dict()) == record
        assert repr(back) == repr(found)
    assert "\n" not in repr(found)
    assert len(repr(found)) < 200
