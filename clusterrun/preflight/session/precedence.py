"""The order in which the findings of phases are read, and which findings explain others.

A phase replaces its own findings and never those of another phase. The order in which phases run does not
matter: a cause stands before its consequences, because it stands before them here.
"""

from __future__ import annotations

# Phases and their questions: is the node there, does it connect, is it sound by itself, does it work with one
# other, is it fast, does it work in larger groups, and was there enough time to know.
PRECEDENCE = (
    "gone",  # the node did not join, or was lost
    "before",  # bad links of the check before
    "cut off",  # the coordinator's node hears nobody
    "port sweep",  # blocked ranges of ports, limits on connections
    "loss",  # lost packets
    "parts by dialling",
    "control",  # connections
    "names",
    "late names",
    "clocks",
    "interfaces",
    "firewall",  # of the coordinator's node
    "parts by joining",
    "parts by sizes",
    "parts by agents",
    "absent",  # links to nodes that did not join
    "sizes",  # large packets of nodes that fell silent
    "checks",  # local checks
    "torch worker",
    "pairs",
    "parts by pairs",
    "rails",  # slow ways between GPUs of one local rank
    "parts by loss",
    "all pairs",
    "parts by all pairs",
    "slow parts of the network",
    "groups",  # nodes that fail in larger groups
    "parts by groups",
    "set",
    "slow parts",
    "burn",  # GPUs under long load
    "late",
    "budget",
    "unfinished",
    "verified",
    "itself",  # a fault of the check
)
# If the network is partitioned, the first of these phases that found it knows the parts best.
PARTS_PRECEDENCE = ("dialling", "joining", "sizes", "pairs", "loss", "all pairs", "groups")
# A node that failed in one of these phases explains all findings of its links.
EXPLAINS_LINKS = ("cut off", "port sweep")
# A node that loses packets explains why tests of its pairs fail.
EXPLAINS_PAIRS = "loss"
OF_PAIRS = ("pairs", "all pairs")
