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
# # How many keys does each head need?
# A small BERT, a text, an error: which heads average, which pick, and what a sample of the keys does to the model.
# The first cells take a few seconds; use longer texts and more queries for numbers to rely on.

# %%
# %matplotlib inline
import torch

import attnlimit as al
from attnlimit.models import packaged_bert
from attnlimit.models.see.text import texts

# %%
bert = al.load(packaged_bert())
reading = al.Reading(tokens=64, passages=1, queries=4)
run = al.analyze(bert, texts(), rel_error=0.2, reading=reading)
str(run)

# %% [markdown]
# Keys that a query reads for 20 % error, by layer and head; + keeps some keys and draws the others.

# %%
run.plot()

# %% [markdown]
# The heads at both ends, in words: what they need if all keys are drawn at random.

# %%
by_need = sorted(run.heads, key=lambda head: head.needed(0.2, "sampled").keys)
[(head.layer, head.head, head.phase(0.2)) for head in (*by_need[:3], *by_need[-3:])]

# %% [markdown]
# ## Budgets
# For each head the cheaper of two ways: keys drawn at random only, or some kept (own token, first keys, window, top keys) and the
# rest drawn.

# %%
budgets = run.budgets(rel_error=0.2)
str(budgets)

# %% [markdown]
# ## The model with those budgets

# %%
inputs = bert.tokenizer(texts()[0], return_tensors="pt", truncation=True, max_length=64)
with torch.no_grad():
    full = bert.model(**inputs).last_hidden_state
    with al.sampled_attention(bert.model, budgets, generator=0) as attended:
        sampled = bert.model(**inputs).last_hidden_state
error = float((sampled - full).norm() / full.norm())
str(attended) + f"; relative error of the last hidden states: {error:.2f}"

# %% [markdown]
# The model is as it was before:

# %%
with torch.no_grad():
    again = bert.model(**inputs).last_hidden_state
bool(torch.equal(again, full))
