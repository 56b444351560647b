"""Upper bounds of the histograms, in seconds. docs/observability.md says why these."""

from __future__ import annotations

# Computing: a choice among few on a GPU takes a millisecond, a cold 4k prefix on two cores a
# minute. Two and a half times from one to the next keeps a quantile within that factor.
COMPUTE_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)

# From submit on, waiting included: an idle worker answers in tens of milliseconds, and a night's
# batch may wait until its deadline, a day by default.
FROM_SUBMIT_S = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0),
)
