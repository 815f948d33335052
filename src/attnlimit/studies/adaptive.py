"""Precision instead of a number of replicates: rounds of tasks, decided by committed results alone.

A decision depends on nothing but the results of the point's tasks, in order. So it comes out the same whatever the
order in which they finished, and a resumed run repeats the decisions of the run that was killed.
"""

from __future__ import annotations

import json
import math

from attnlimit.studies.kinds import kind
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
    known = store.results_of(point)
    done = sum(count for count, _ in known)
    wanted = _wanted(study, [unpack(result) for _, result in known], store.what(point), done)
    if wanted <= done:
        return 0
    added = list(tasks(study, json.loads(store.what(point)), done, wanted))
    store.extend(point, added)
    return len(added)


def _wanted(study: Study, results: list[dict[str, object]], what: str, done: int) -> int:
    """Replicates in all after the next round: as many as the width asks for (it falls like 1/√replicates), at most
    twice as many as now."""
    precision, found = study.precision, kind(study.kind)
    if precision is None or found.half_width is None:
        return done
    width = found.half_width(found.what.model_validate_json(what), results, precision.of, precision.level)
    if width <= precision.half_width:
        return done
    ratio = MARGIN * (width / precision.half_width) ** 2 if width < math.inf else 2.0
    return min(done + rounded(study, math.ceil(done * min(ratio, 2.0)) - done), precision.max_replicates)
