"""Methods that explain what a model computes for an image by a map: pure functions, listed in :data:`METHODS`."""

from vitviz.attribution.attention import attention, attention_sheet
from vitviz.attribution.flow import attention_flow
from vitviz.attribution.grad_cam import grad_cam
from vitviz.attribution.gradient_rollout import gradient_rollout
from vitviz.attribution.inputs import AttributionInput
from vitviz.attribution.legrad import legrad
from vitviz.attribution.mass import attention_mass
from vitviz.attribution.methods import METHODS, Method
from vitviz.attribution.pixels import integrated_gradients, occlusion
from vitviz.attribution.pooling_attention import pooling_attention
from vitviz.attribution.relevance import relevance
from vitviz.attribution.rollout import rollout, rollout_matrix
from vitviz.attribution.value_attention import value_attention

__all__ = [
    "METHODS",
    "AttributionInput",
    "Method",
    "attention",
    "attention_flow",
    "attention_mass",
    "attention_sheet",
    "grad_cam",
    "gradient_rollout",
    "integrated_gradients",
    "legrad",
    "occlusion",
    "pooling_attention",
    "relevance",
    "rollout",
    "rollout_matrix",
    "value_attention",
]
