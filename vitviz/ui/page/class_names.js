// The classes of a model, and targets of maps as values.

/**
 * A class's label, with its number where another class has the same.
 * @param {Model} model
 * @param {number} index
 */
export function labelOf(model, index) {
  const label = model.labels[index];
  return model.labels.indexOf(label) === model.labels.lastIndexOf(label) ? label : `${label} (${index})`;
}

/**
 * Whether a target has classes, which belong to one model.
 * @param {Target} target
 */
export const hasClasses = (target) =>
  typeof target === "number" || ["class", "against", "margin"].some((name) => /** @type {any} */ (target)?.[name] !== undefined);

/**
 * A target without its patch, which means nothing on another picture or grid; null if nothing is left.
 * @param {Target} target
 */
export function withoutPlaces(target) {
  if (typeof target !== "object" || !target?.patch) return target ?? null;
  return target.like ? { like: target.like } : null;
}

/**
 * The index of a class by its name or, if none is named so, by its number, as `class_of` of vitviz.models.targets finds it;
 * null for none or several.
 * @param {Model} model
 * @param {string} text
 */
export function classNamed(model, text) {
  const folded = text.toLowerCase();
  const namesOf = (/** @type {string} */ label) => label.toLowerCase().split(",").map((name) => name.trim());
  /** @type {((label: string, index: number) => boolean)[]} */
  const tests = [
    (label, index) => labelOf(model, index) === text,
    (label, index) => labelOf(model, index).toLowerCase() === folded,
    (label) => label.toLowerCase() === folded,
    (label) => namesOf(label)[0] === folded,
    (label) => namesOf(folded).every((name) => namesOf(label).includes(name)),
    (label, index) => String(index) === folded,
  ];
  for (const test of tests) {
    const matches = [...model.labels.keys()].filter((index) => test(model.labels[index], index));
    if (matches.length) return matches.length === 1 ? matches[0] : null;
  }
  return null;
}
