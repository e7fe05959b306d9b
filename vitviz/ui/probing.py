"""What a probe finds in one analysis, as a page gets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradio.utils import get_upload_folder

from vitviz.evaluation.probes import PROBES, probe
from vitviz.ui.arguments import Bounds, values_of, word
from vitviz.ui.facts import visible
from vitviz.ui.files import keep
from vitviz.ui.packs import findings_pack
from vitviz.ui.server.estimates import probe_bytes
from vitviz.ui.service import AnalysisService
from vitviz.ui.steps import Report, Step

# The slowest probe takes about as long as so many forward passes.
PROBE_PASSES = 2


class Probing:
    """Answers the requests of pages that look into a model.

    Args:
        service: the analyses, and whose turn it is.
    """

    def __init__(self, service: AnalysisService) -> None:
        self.service = service

    def probe(self, request: Mapping[str, Any], report: Report) -> dict[str, Any]:
        """What a probe finds: a sentence, a table, and a file of its measurements."""
        analysis = self.service.cached(request.get("uid"))
        record = PROBES[word("probe", request.get("probe"), PROBES)]
        bounds = Bounds.of(analysis.model, analysis.trace.layout)
        parameters = values_of(record.parameters, request.get("parameters"), bounds)
        lock, needed = self.service.pass_lock(analysis, PROBE_PASSES), probe_bytes(analysis, record.name)
        with self.service.turn(lock, needed, "this probe", report):
            report(Step(record.title))
            findings = probe(analysis, record.name, **parameters)
            path = keep(findings_pack(findings), "pack.safetensors", get_upload_folder())
        return {
            "probe": record.name,
            "summary": visible(findings.summary),
            "heading": list(map(visible, findings.heading)),
            "rows": [list(map(visible, row)) for row in findings.rows],
            "path": path,
        }
