"""The packages of which configurations are drawn."""

from tests.parity.random_draws import Drawn
from tests.parity.random_open_clip import OPEN_CLIP
from tests.parity.random_timm import TIMM
from tests.parity.random_transformers import TRANSFORMERS

DRAWN: dict[str, Drawn] = {"timm": TIMM, "transformers": TRANSFORMERS, "open_clip": OPEN_CLIP}
