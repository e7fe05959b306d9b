// The colour tables of the page, and the one of signed values.

import { DIFFERENCE, readColours } from "./colours.js";
import { SETTINGS } from "./settings.js";

export const { [DIFFERENCE]: differenceColours, ...colours } = readColours(SETTINGS.colours);
