# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Attention with infinitely many tokens
# Limits, exact errors at finite n, rates and phases, for laws of tokens. No model, no Monte Carlo unless asked for.

# %%
# %matplotlib inline
import torch

import attnlimit as al
from attnlimit.report.figures.curves import convergence_figure, curve_figure
from attnlimit.report.figures.phase import phase_figure

# %% [markdown]
# ## One map, finite or not

# %%
law = al.Gaussian(cov=[1.0, 0.25])
head = al.Head(torch.diag(torch.tensor([2.0, 2.0], dtype=torch.float64)))
x = torch.tensor([0.5, 1.0], dtype=torch.float64)
head(law)(x), head(law.sample(10_000, generator=0))(x)

# %% [markdown]
# ## The exact error, and the central limit theorem that it joins

# %%
n = [10**k for k in range(0, 13, 2)]
exact = al.exact_error(head, law, n, x[None]).rms[0]
theorem = [float(al.clt(head, law, x).covariance.trace() / size) ** 0.5 for size in n]
[(size, f"{a:.3g}", f"{b:.3g}") for size, a, b in zip(n, exact.tolist(), theorem, strict=True)]

# %% [markdown]
# ## Averaged over queries: a rate set by the horizon
# The dashed line has the limit slope; the curve gets there slowly.

# %%
curve = al.curve(head, law, [10**k for k in range(1, 13)])
curve_figure(curve, rates=al.rates(head, law), title=f"horizon {al.horizon(head, law):.3g}")

# %% [markdown]
# A measured curve agrees, with an interval on its slope:

# %%
measured = al.measure_convergence(
    head, law, [100, 200, 400, 800, 1600], replicates=32, queries=32, generator=0
)
convergence_figure(measured)

# %%
measured.fit()

# %% [markdown]
# ## Phases

# %%
kappa = torch.linspace(0.25, 6, 16).tolist()
phase_figure(al.phase_diagram(al.Sphere(8), kappa, [10**k for k in range(1, 11)]))

# %% [markdown]
# ## What can be proved

# %%
unit = al.Head(torch.eye(3, dtype=torch.float64))
[
    al.bounds.mean_square(unit, al.Sphere(3), [1.0, 0.0, 0.0], n=10**6),
    al.bounds.uniform(unit, al.Sphere(3), radius=1.0, n=10**6, delta=0.05),
]
