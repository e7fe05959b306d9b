"""Runs modules of the page under node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.example import ROOT

NODE = Path(sys.executable).parent / "node"


def in_node(imports: Mapping[str, str], function: str, value: object) -> Any:
    """What a function in JavaScript makes of a value, both as JSON.

    Args:
        imports: modules of ``vitviz/ui/page``, such as ``"numbers.js"``, each with a name that it exports.
        function: of the value.
        value: JSON.
    """
    folder = ROOT / "vitviz" / "ui" / "page"
    lines = [f"import {{ {name} }} from {json.dumps((folder / module).as_uri())};" for module, name in imports.items()]
    code = f"""
        {" ".join(lines)}
        import {{ readFileSync }} from "node:fs";
        console.log(JSON.stringify(await ({function})(JSON.parse(readFileSync(0, "utf8")))));
    """
    command = [str(NODE), "--input-type=module", "--eval", code]
    run = subprocess.run(command, input=json.dumps(value), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
