"""The effects of augmentation on a batch, and what it does not change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from einops import repeat

from vitviz.training.augment import mix_batch, views
from vitviz.training.presets import TrainingConfig

COUNT, SIZE = 200, 16


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ramps() -> torch.Tensor:
    """Red grows to the right and green downwards, both by 1/32 a pixel; blue is constant."""
    slope = (torch.arange(SIZE) + 8) / 32
    across = repeat(slope, "column -> row column", row=SIZE)
    image = torch.stack([across, across.T, torch.full((SIZE, SIZE), 0.5)])
    return repeat(image, "channel row column -> image channel row column", image=COUNT)


def only(**settings: Any) -> TrainingConfig:
    """Settings with these augmentations alone."""
    return TrainingConfig(**{"smallest_crop": 1, "flip": False, "jitter": 0, "mix": 0, **settings})


def test_without_crop_flip_and_jitter_an_image_moves_by_a_sixteenth_at_most() -> None:
    images = ramps()
    augmented = views(only(), images, SIZE, generator())
    assert augmented.shape == images.shape
    assert ((augmented - images).abs() * 32).max() <= SIZE / 16 + 1e-3
    # In the middle, away from reflections, the whole picture is shifted.
    inside = (augmented - images)[:, :2, 2:-2, 2:-2] * 32
    assert (inside.amax((2, 3)) - inside.amin((2, 3))).max() < 1e-3
    assert inside.mean((2, 3)).std() > 0.2


@pytest.mark.parametrize("smallest", [0.1, 0.5, 0.8, 0.95, 1.0])
def test_a_crop_keeps_at_least_the_area_that_was_asked_for(smallest: float) -> None:
    augmented = views(only(smallest_crop=smallest), ramps(), SIZE, generator())
    across = augmented[:, 0].diff(dim=-1).flatten(1).median(1).values * 32
    down = augmented[:, 1].diff(dim=-2).flatten(1).median(1).values * 32
    area = across * down
    assert area.min() >= smallest - 1e-3
    assert area.max() <= 1 + 1e-3
    assert area.std() >= 0.1 * (1 - smallest)
    ratio = across / down
    assert ratio.min() >= 3 / 4 - 1e-3
    assert ratio.max() <= 4 / 3 + 1e-3


def spread(images: torch.Tensor) -> torch.Tensor:
    """How much neighbouring pixels differ: ``"image"``."""
    return images.diff(dim=-1).abs().mean((-3, -2, -1))


def test_views_of_fine_stripes_are_grey_where_they_are_made_smaller() -> None:
    """Without halving first, sampling would hit some stripes of one pixel and miss others."""
    stripes = repeat(torch.tensor([0.0, 1.0]), "pair -> image 3 row (column pair)", image=20, row=32, column=16)
    assert (views(only(), stripes, 8, generator()) - 0.5).abs().max() < 0.05
    assert views(only(), stripes, 32, generator()).std() > 0.2


def test_views_of_all_reductions_look_at_the_same_places() -> None:
    """A reduced view of a ramp has the mean of the larger view."""
    settings = only(smallest_crop=0.05)
    images = torch.nn.functional.interpolate(ramps(), (64, 64), mode="bilinear", align_corners=False)
    large, small = (views(settings, images, size, generator()) for size in (32, 8))
    assert (torch.nn.functional.avg_pool2d(large, 4) - small)[..., 2:-2, 2:-2].abs().max() < 0.01


def test_a_crop_reaches_over_the_edge_by_a_sixteenth_of_its_side_at_most() -> None:
    augmented = views(only(smallest_crop=0.3), ramps(), SIZE, generator())
    for channel, dim in ((0, -1), (1, -2)):
        side = augmented[:, channel].diff(dim=dim).flatten(1).median(1).values * 32 * SIZE
        middle = augmented[:, channel].narrow(dim, SIZE // 2 - 1, 2)
        centre = middle.mean((1, 2)) * 32 - 7.5
        start, end = centre - side / 2, centre + side / 2
        assert -1 / 16 - 0.02 <= (start / side).min() < -0.02
        assert 0.02 < ((end - SIZE) / side).max() <= 1 / 16 + 0.02


def test_flipped_views_are_the_mirror_images() -> None:
    straight = views(only(smallest_crop=0.5), ramps(), SIZE, generator())
    flipped = views(only(smallest_crop=0.5, flip=True), ramps(), SIZE, generator())
    kept, mirrored = (
        [torch.allclose(one, other, atol=1e-5) for one, other in zip(flipped, candidates, strict=True)]
        for candidates in (straight, straight.flip(-1))
    )
    assert all(a != b for a, b in zip(kept, mirrored, strict=True))
    assert 0.35 < sum(mirrored) / COUNT < 0.65


def test_jitter_changes_brightness_within_its_bounds() -> None:
    grey = torch.full((COUNT, 3, SIZE, SIZE), 0.5)
    levels = views(only(jitter=0.3), grey, SIZE, generator())[:, 0, 0, 0]
    assert 0.35 - 1e-4 <= levels.min() < 0.38
    assert 0.62 < levels.max() <= 0.65 + 1e-4
    torch.testing.assert_close(views(only(), grey, SIZE, generator()), grey)


def test_jitter_changes_saturation_but_not_grey() -> None:
    colour = repeat(torch.tensor([0.6, 0.4, 0.5]), "channel -> image channel 4 4", image=COUNT)
    augmented = views(only(jitter=0.3), colour, 4, generator())[:, :, 0, 0]
    spread = (augmented[:, 0] - augmented[:, 1]) / 0.2
    assert 0.7**2 - 1e-3 <= spread.min() < 0.8
    assert 1.2 < spread.max() <= 1.3**2 + 1e-3
    torch.testing.assert_close(augmented[:, 2], augmented.mean(1))


@pytest.mark.parametrize("size", [8, SIZE, 24])
def test_views_have_the_size_asked_for_and_values_in_range(size: int) -> None:
    images = torch.rand(20, 3, SIZE, SIZE, generator=generator(1)).round()
    before = images.clone()
    augmented = views(TrainingConfig(smallest_crop=0.2, jitter=1), images, size, generator())
    assert augmented.shape == (20, 3, size, size)
    assert augmented.min() >= 0
    assert augmented.max() <= 1
    assert torch.equal(images, before)


def test_every_image_gets_a_view_of_its_own_that_follows_from_the_generator() -> None:
    one, same, other = (views(TrainingConfig(), ramps(), SIZE, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert len({view.numpy().tobytes() for view in one}) == COUNT


def test_mixed_targets_are_the_share_of_the_pixels() -> None:
    """One black and one white image: the mean of the pixels says how much white an image has."""
    images = repeat(torch.tensor([0.0, 1.0]), "image -> image 3 16 16")
    targets = torch.eye(2)
    kinds = {"mixup": 0, "cutmix": 0}
    shares = []
    for seed in range(COUNT):
        pixels, shared = mix_batch(1, images, targets, generator(seed))
        torch.testing.assert_close(shared.sum(1), torch.ones(2))
        torch.testing.assert_close(pixels.mean((1, 2, 3)), shared[:, 1], atol=1e-5, rtol=0)
        evenly = bool((pixels[0] == pixels[0, 0, 0, 0]).all())
        kinds["mixup" if evenly else "cutmix"] += 1
        if not evenly:
            white = pixels[0, 0].nonzero()
            height, width = (white.amax(0) - white.amin(0) + 1).tolist()
            assert len(white) == height * width, "what was pasted is no rectangle"
        shares.append(float(shared[0, 0]))
    assert min(kinds.values()) > 0.35 * COUNT
    assert min(shares) < 0.05 < 0.95 < max(shares)
    assert torch.equal(images, repeat(torch.tensor([0.0, 1.0]), "image -> image 3 16 16"))
    assert torch.equal(targets, torch.eye(2))


@pytest.mark.parametrize(("mix", "low", "high"), [(0.0, 0, 0), (0.5, 0.35, 0.65), (1.0, 1, 1)])
def test_the_requested_share_of_batches_is_mixed(mix: float, low: float, high: float) -> None:
    images, targets = torch.rand(4, 3, 8, 8, generator=generator()), torch.eye(4)
    changed = [not torch.equal(mix_batch(mix, images, targets, generator(seed))[1], targets) for seed in range(COUNT)]
    assert low <= sum(changed) / COUNT <= high
