"""What needs vitviz's own network, layer by layer, and says so of any other."""

from __future__ import annotations

from vitviz.errors.kinds import MethodError
from vitviz.models.config import ViTConfig
from vitviz.models.network import Network, NetworkConfig
from vitviz.models.vit import VisionTransformer

NOT_OF_A_MODULE = (
    "this model is a module that vitviz captures, and does not run layer by layer; expected a checkpoint of a family "
    "that vitviz opens itself"
)


def own_network(network: Network, what: str) -> VisionTransformer:
    """A network of vitviz's own.

    Args:
        network: of a model.
        what: needs it, as the message begins.

    Raises:
        MethodError: it is a captured module.
    """
    if isinstance(network, VisionTransformer):
        return network
    raise MethodError(f"{what}: {NOT_OF_A_MODULE}")


def own_config(config: NetworkConfig, what: str) -> ViTConfig:
    """The configuration of a network of vitviz's own.

    Raises:
        MethodError: it is that of a captured module.
    """
    if isinstance(config, ViTConfig):
        return config
    raise MethodError(f"{what}: {NOT_OF_A_MODULE}")
