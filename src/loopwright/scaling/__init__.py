"""What an update costs each rank of a strategy: the bytes that the rank holds and sends."""

from .rank_cost import Collective, RankCost, UpdateSettings, rank_cost

__all__ = ["Collective", "RankCost", "UpdateSettings", "rank_cost"]
