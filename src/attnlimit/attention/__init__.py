"""Heads, the maps they become on a measure, and what n tokens do around the limit."""

from attnlimit.attention.clt import CLT, clt
from attnlimit.attention.head import Head, LinearHead
from attnlimit.attention.maps import AttentionMap, HardmaxMap, LimitMap, TokenMap
from attnlimit.attention.streaming import prefixes, stream
from attnlimit.doors import doors

__all__ = [
    "CLT",
    "AttentionMap",
    "HardmaxMap",
    "Head",
    "LimitMap",
    "LinearHead",
    "TokenMap",
    "clt",
    "prefixes",
    "stream",
]

doors(__name__)
