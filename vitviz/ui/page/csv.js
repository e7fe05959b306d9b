// Tables for spreadsheets.

// What a spreadsheet would execute if it did not begin with an apostrophe; a number is none.
const FORMULA = /^[=+\-@\t\r]/, NUMBER = /^[+-]?\d+(\.\d+)?(e[+-]?\d+)?%?$/;

/**
 * Rows of texts as CSV.
 * @param {string[][]} rows
 */
export function asCsv(rows) {
  const cell = (/** @type {string} */ text) => {
    const content = FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text;
    return /[",;\t\r\n]/.test(content) ? `"${content.replace(/"/g, '""')}"` : content;
  };
  return rows.map((cells) => `${cells.map(cell).join(",")}\r\n`).join("");
}
