"""Precision instead of a number of replicates: rounds of tasks, decided by committed results alone.

A decision depends on nothing but the results of the point's tasks, in order. So it comes out the same whatever the
order in which they finished, and a resumed run repeats the decisions of the run that was killed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from attnlimit.studies.kind import Result, kind
from attnlimit.studies.points import rounded, tasks
from attnlimit.studies.spec import Study
from attnlimit.studies.store import Store
from attnlimit.studies.work import unpack

MARGIN = 1.1
"""The width of an interval is an estimate too: ask for a little more than it says."""


def extend(study: Study, store: Store, point: int) -> int:
    """Add the next round of a point if its tasks are all done and not yet precise enough; how many tasks it has."""
    if study.precision is None or store.lacks(point):
        return 0
    found, known = kind(study.kind), store.results_of(point)
    done = sum(count for count, _ in known)
    what = json.loads(store.what(point))
    wanted = replicates_for(study, [unpack(found, result) for _, result in known], what, done)
    stop = (
        2 * done if wanted is None else min(wanted, 2 * done)
    )  # the width is an estimate too: at most twice as many
    stop = min(done + rounded(study, stop - done), study.precision.max_replicates)
    added = list(tasks(study, what, done, stop)) if stop > done else []
    store.extend(point, added)
    return len(added)


def replicates_for(study: Study, results: Sequence[Result], what: dict[str, object], done: int) -> int | None:
    """How many replicates the asked precision needs, from the width that `done` of them have, which falls like
    1/√replicates; None if they tell no width."""
    precision, found = study.precision, kind(study.kind)
    if precision is None:
        return done
    joined = found.result.joined(results)
    width = found.model_validate(what).half_width(joined, precision.of, precision.level)
    if width <= precision.half_width:
        return done
    return math.ceil(done * MARGIN * (width / precision.half_width) ** 2) if width < math.inf else None
