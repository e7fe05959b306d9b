"""Checks for code that needs vitviz's own network, layer by layer, and not a captured module."""

from __future__ import annotations

from vitviz.errors.kinds import MethodError
from vitviz.models.config import ViTConfig
from vitviz.models.given import NO_NETWORK, GivenNetwork
from vitviz.models.network import Network, NetworkConfig
from vitviz.models.vit import VisionTransformer

CAPTURED_MODULE = (
    "this model is a module that vitviz captures, and does not run layer by layer; expected a checkpoint of a family "
    "that vitviz opens itself"
)


def require_vit(network: Network, purpose: str) -> VisionTransformer:
    """The network as a :class:`vitviz.VisionTransformer`.

    Args:
        network: network of a model.
        purpose: start of the message, such as the name of a method.

    Raises:
        MethodError: the network is a captured module, or there is none.
    """
    if isinstance(network, VisionTransformer):
        return network
    raise MethodError(f"{purpose}: {NO_NETWORK if isinstance(network, GivenNetwork) else CAPTURED_MODULE}")


def require_vit_config(config: NetworkConfig, purpose: str) -> ViTConfig:
    """The configuration as a :class:`vitviz.ViTConfig`.

    Raises:
        MethodError: the configuration is that of a captured module.
    """
    if isinstance(config, ViTConfig):
        return config
    raise MethodError(f"{purpose}: {CAPTURED_MODULE}")
