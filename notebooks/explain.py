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
# # What is this head doing?
# What every head of a small BERT reads on a sentence, which of it can be trusted, and what matters to the model's answer.

# %%
import attnlimit as al
from attnlimit.models.explain.result import ROLES

text = (
    "The river Amstel gave the city its name. When the river was dammed, the city grew around the dam, and the people of "
    "the city called it Amsterdam."
)
found = al.explain("minilm", text, "people", reading=al.Reading(queries=2, answer=4))
str(found)

# %% [markdown]
# ## Roles
# The mean share of each in all heads, and the head that has most of it, with its interval.

# %%
mean = {role: sum(head.share(role)[0] for head in found.heads) / len(found.heads) for role in ROLES}
most = {role: max(found.heads, key=lambda head, role=role: head.share(role)[0]) for role in ROLES}
{role: (f"{mean[role]:.2f}", most[role].layer, most[role].head, most[role].share(role)) for role in ROLES}

# %% [markdown]
# How shares go with what else is known of heads: rank correlations whose interval leaves 0 out.

# %%
[one for one in found.links if one.low > 0 or one.high < 0]

# %% [markdown]
# ## One token
# What each of the heads that matter most to the answer reads there, and how sure that is.

# %%
people = found.chosen[0]
best = sorted(people.reads, key=lambda read: -read.matters)[:5]
[(read.layer, read.head, found.words(read), f"certainty {read.certainty:.2f}") for read in best]

# %% [markdown]
# The heads that are least certain: their largest weights are no explanation.

# %%
least = sorted(people.reads, key=lambda read: read.certainty)[:5]
[(read.layer, read.head, found.words(read), f"certainty {read.certainty:.2f}") for read in least]

# %% [markdown]
# What becomes of the embedding if all heads read only what explains them at this token, and with as many random keys:

# %%
str(people.measured)
