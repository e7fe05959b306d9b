// The QR code of a link.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";

import { qrCode } from "../../vitviz/ui/page/qr.js";

// Each was read back by a decoder (OpenCV 4): the side, and the beginning of the SHA-256 of rows of 0 and 1.
const READ = [
  ["a", 21, "bf35b1e154e92eb4"],
  ["https://example.org/?method=attention&p.layer=4&p.query=3,4", 33, "a969883d57794880"],
  ["x".repeat(150), 45, "1b893491bd8934e7"],
  [`http://vitviz.example/ ${"ab,12;".repeat(60)}`, 69, "ba15c054d32cd471"],
  [`Grüße ${"z".repeat(1300)}`, 121, "62890c078650a386"],
  ["q".repeat(2953), 177, "ca8aa7b6a22cd997"],
];

test("codes are those that a decoder has read, and a text that is too long has none", () => {
  for (const [text, side, digest] of READ) {
    const rows = qrCode(text).map((row) => row.map(Number).join(""));
    assert.deepEqual([rows.length, ...new Set(rows.map(({ length }) => length))], [side, side]);
    assert.equal(createHash("sha256").update(rows.join("\n")).digest("hex").slice(0, 16), digest, text.slice(0, 40));
  }
  assert.equal(qrCode("q".repeat(2954)), null);
});
