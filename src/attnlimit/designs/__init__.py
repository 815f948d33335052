"""Which n keys a query reads: what is kept, how the rest is drawn, how it is weighed."""

from attnlimit.designs.block import Block
from attnlimit.designs.chances import Chances
from attnlimit.designs.coins import Coins
from attnlimit.designs.different import Different
from attnlimit.designs.draw import Draw
from attnlimit.designs.independent import Independent
from attnlimit.designs.kept import Kept
from attnlimit.designs.neyman import Neyman
from attnlimit.designs.prefix import Prefix
from attnlimit.designs.sampling import Sampling, draws
from attnlimit.designs.strata import Strata
from attnlimit.doors import doors

__all__ = [
    "Block",
    "Chances",
    "Coins",
    "Different",
    "Draw",
    "Independent",
    "Kept",
    "Neyman",
    "Prefix",
    "Sampling",
    "Strata",
    "draws",
]

doors(__name__)
