// The parts of the page beside its pictures.

import { Beside } from "./alike.js";
import { Comparison } from "./compare.js";
import { Controls } from "./controls.js";
import { Guide } from "./guide.js";
import { Panels } from "./panels.js";
import { Probes } from "./probes.js";
import { Questions } from "./questions.js";
import { Source } from "./source.js";
import { Unless } from "./unless.js";

export const source = new Source(), controls = new Controls(), panels = new Panels(), probes = new Probes(), guide = new Guide();
export const questions = new Questions(), comparison = new Comparison(), unless = new Unless(), beside = new Beside();
