"""Many pictures: a folder, a list, an archive or a table of them in, Parquet out. Needs the extra ``batch``.

This package reads sources of pictures, stores the results, and resumes runs that were interrupted. The result of one
picture is computed by ``analysis``, ``attribution`` and ``evaluation``.
"""

from vitviz.datasets.atlas import Atlas, read_atlas
from vitviz.datasets.batch import ENGINES, Summary, run_batch
from vitviz.datasets.cluster import Cluster, analyze_dataset
from vitviz.datasets.loader import analyze_loader, rows_of
from vitviz.datasets.readers import READERS, Item, Items, read_items, reader_of
from vitviz.datasets.request import BatchRequest, FeatureRequest, MapRequest
from vitviz.datasets.writers import NUMBERS, Writer, overlays

__all__ = [
    "ENGINES",
    "NUMBERS",
    "READERS",
    "Atlas",
    "BatchRequest",
    "Cluster",
    "FeatureRequest",
    "Item",
    "Items",
    "MapRequest",
    "Summary",
    "Writer",
    "analyze_dataset",
    "analyze_loader",
    "overlays",
    "read_atlas",
    "read_items",
    "reader_of",
    "rows_of",
    "run_batch",
]
