"""What a network takes for alike: vectors of patches, their components as colours, likeness, matches and clusters."""

from vitviz.features.basis import Basis
from vitviz.features.colour_maps import ColourMap, ColourMaps
from vitviz.features.components import components
from vitviz.features.layer_choice import LayerScores, layer_scores
from vitviz.features.matching import Match, clusters, matches
from vitviz.features.vectors import KINDS, Features, Kind

__all__ = [
    "KINDS",
    "Basis",
    "ColourMap",
    "ColourMaps",
    "Features",
    "Kind",
    "LayerScores",
    "Match",
    "clusters",
    "components",
    "layer_scores",
    "matches",
]
