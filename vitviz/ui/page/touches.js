// What a visitor does, as against what the browser makes up.

const TOUCHES = ["pointerdown", "pointermove", "keydown", "wheel", "change", "drop", "paste"];

/** @type {{ event: Event | null, place: string, isOwn: boolean }} */
let lastMove = { event: null, place: "", isOwn: false };

/**
 * Whether an event is the visitor's own. The browser moves a pointer that rests where something appears or moves under it: its
 * place on the screen stays the same.
 * @param {Event} event
 */
export function isTouch(event) {
  if (event.type === "pointermove" && event !== lastMove.event) {
    const { screenX, screenY, movementX, movementY } = /** @type {PointerEvent} */ (event), place = `${screenX} ${screenY}`;
    lastMove = { event, place, isOwn: Boolean(movementX || movementY || (lastMove.place && lastMove.place !== place)) };
  }
  return event.type !== "pointermove" || lastMove.isOwn;
}

/**
 * A text that says what a pointer does, in the words of who has none.
 * @param {string} text
 */
export const wordsOfFinger = (text, isFinger = matchMedia("(hover: none)").matches) =>
  (isFinger ? text.replaceAll(/Point( at)?\b/g, "Touch").replaceAll("point at", "touch").replaceAll(/\b(a )click\b/gi, "$1tap")
    .replaceAll(/\bClick (?=a )/g, "Tap ").replaceAll(/\bclick (?=a |the )/g, "tap ") : text);

/**
 * @param {EventTarget} target
 * @param {(event: Event) => void} listener
 */
export function onTouch(target, listener) {
  for (const touch of TOUCHES) target.addEventListener(touch, (event) => isTouch(event) && listener(event), true);
}
