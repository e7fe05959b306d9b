// Tables that the page saves.

import assert from "node:assert/strict";
import { test } from "node:test";

import { asCsv } from "../../vitviz/ui/page/csv.js";

test("a saved table executes nothing in a spreadsheet, and its numbers stay numbers", () => {
  const cells = ["=1+1", "+cmd|x", "-2+3", "@sum", "\t=1", "\r=1", "- a, b", 'a "b"', "-0.0216", "+1", "-1.00e+6", "-3.5%", "a=1", "", "–"];
  // Where a comma is the decimal sign, ; separates.
  assert.equal(asCsv([["a;=1", "b\t=1"]]), '"a;=1","b\t=1"\r\n');
  const texts = ["'=1+1", "'+cmd|x", "'-2+3", "'@sum", "\"'\t=1\"", "\"'\r=1\"", "\"'- a, b\"", '"a ""b"""', ...cells.slice(8)];
  assert.equal(asCsv([["head"], cells]), `head\r\n${texts.join(",")}\r\n`);
});
