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
# # In-context learning: finite and infinite prompts
# Linear regression in context. What softmax attention becomes on an infinite prompt, where training leads, and how long a prompt is
# long enough.

# %%
# %matplotlib inline
import torch

import attnlimit as al

# %%
task = al.icl.LinearRegression(3, cov=al.icl.ar1(3, 0.5), noise=0.1)
str(task)

# %% [markdown]
# ## The flow of the infinite-prompt risk, and its end in closed form

# %%
path = al.icl.flow(task, al.icl.balanced(task, 0.1))
path.plot()

# %%
end = al.icl.endpoint(task)
float((path.end_block.A - end.A).abs().max()), path.end_block.b - end.b

# %% [markdown]
# ## Those weights on finite prompts
# Exact over prompts: none is drawn.

# %%
found = al.icl.transfer(task, length=64)
found.plot()

# %%
str(found)

# %% [markdown]
# ## Training on finite prompts
# A short run; the published one has 300,000 steps. The longer the prompts, the closer training stays to the flow.

# %%
trained = al.icl.train(
    task,
    [10, 100],
    optimizer=al.icl.Optimizer(steps=300, lr=0.05, batch=64),
    start=al.icl.Start(init=0.5),
    evaluation=al.icl.Evaluation(reports=3, prompts=512),
)
trained.plot()

# %%
trained.parameter_gap[-1, 0]

# %% [markdown]
# ## Gradients concentrate too

# %%
head = al.Head(0.3 * torch.eye(3, dtype=torch.float64))
spread = al.icl.concentration(
    head, al.Gaussian(dim=3), [64, 256, 1024], trials=al.icl.Trials(replicates=16, queries=16), generator=0
)
spread.plot()
