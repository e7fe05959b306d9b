"""Work shared by threads."""

import pytest
import torch

from vitviz.system.threads import in_threads


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    request.addfinalizer(lambda: torch.set_num_threads(before))
    return int(request.param)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_every_item_has_its_result_in_order(threads: int, count: int) -> None:
    assert in_threads(lambda item: item**2, range(count)) == [item**2 for item in range(count)]


def test_an_error_in_any_thread_is_raised(threads: int) -> None:
    for wrong in range(4):
        with pytest.raises(ZeroDivisionError):
            in_threads(lambda item, wrong=wrong: 1 / (item - wrong), range(4))
