"""vitviz against the packages themselves: every way in which they write a checkpoint, one case each."""

# First, for it makes torchvision importable, which timm imports.
import tests.reference_packages as packages
from tests.parity import meta_cases, other_cases, taught_cases, timm_cases, transformers_cases
from tests.parity.case import Case

# Its progress bars and its advice on settings that the cases leave alone.
packages.transformers.utils.logging.set_verbosity_error()
packages.transformers.utils.logging.disable_progress_bar()

CASES: tuple[Case, ...] = (
    *meta_cases.CASES,
    *timm_cases.CASES,
    *transformers_cases.CASES,
    *other_cases.CASES,
    *taught_cases.CASES,
)
