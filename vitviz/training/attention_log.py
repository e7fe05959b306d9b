"""A picture of the attention to a few fixed test images, for the log of a run."""

from __future__ import annotations

import numpy as np
import torch
from einops import rearrange
from PIL import Image

from vitviz.attribution import rollout
from vitviz.images.geometry import Geometry
from vitviz.images.preprocessing import Preprocessing
from vitviz.models.vit import VisionTransformer
from vitviz.training.data import LabelledImages
from vitviz.visualization.heatmaps import Heatmap

MAX_CLASSES = 8
SIDE = 96


@torch.inference_mode()
def attention_picture(network: VisionTransformer, preprocessing: Preprocessing, data: LabelledImages) -> np.ndarray:
    """The first image of each of the first classes above its attention rollout: ``"channel height width"``, uint8."""
    first = [int((data.targets == target).nonzero()[0]) for target in range(min(MAX_CLASSES, len(data.labels)))]
    images = data.images[first]
    pixels = preprocessing.standardise(images.float() / 255)
    traces = network.encode(pixels.to(network.device)).traces
    columns = []
    for image, trace in zip(images, traces, strict=True):
        picture = Image.fromarray(rearrange(image, "channel height width -> height width channel").numpy())
        crop = (0.0, 0.0, float(picture.width), float(picture.height))
        geometry = Geometry(picture.width, picture.height, crop, picture.height, picture.width)
        heatmap = Heatmap(rollout(trace), picture, geometry).resized(SIDE)
        columns.append(np.concatenate([np.asarray(heatmap.image), np.asarray(heatmap.overlay())]))
    return rearrange(columns, "image height width channel -> channel height (image width)")
