"""All rules of diagnosis: the modules of ``rules`` that are imported here."""

from __future__ import annotations

# ruff: noqa: F401
from clusterrun.diagnosis.rules import (
    absent_rank,
    circle,
    different_arguments,
    different_collective,
    different_model,
    different_places,
    different_sizes,
    ended_rank,
    error_in_rank,
    group_request,
    held_lock,
    left_out_call,
    moving_ranks,
    no_stacks,
    noticed_hang,
    order_of_groups,
    outside,
    posted_ops,
    progressing_rank,
    stopped_rank,
    timed_out,
    two_threads,
    unended_call,
    unmet,
    unset_key,
    wrong_peer,
)
