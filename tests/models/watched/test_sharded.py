"""Modules that FSDP shards: refused with what to do instead, which works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import vitviz
from tests.support.modules import OwnViT, load_own

PREFIX = ["cls", "register 1", "register 2"]


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_a_sharded_module_is_refused_and_opens_when_it_is_gathered(process_group: None) -> None:
    torch.manual_seed(0)
    sharded, plain = OwnViT(registers=2).eval(), OwnViT(registers=2).eval()
    pixels = torch.randn(1, 3, 16, 24)
    expected = load_own(sharded, prefix=PREFIX).network(pixels)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(vitviz.ConfigError) as raised:
        load_own(sharded, prefix=PREFIX)
    assert "sharded over several processes" in str(raised.value) and "get_model_state_dict" in str(raised.value)
    assert "\n" not in str(raised.value)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    plain.load_state_dict(get_model_state_dict(sharded, options=options))
    assert torch.equal(load_own(plain, prefix=PREFIX).network(pixels), expected)
