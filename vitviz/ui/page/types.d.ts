// The kinds of values that the page's modules pass to each other; the server's are as `facts.py` and `state.py` write them.

type Attention = import("./attention.js").Attention;
type Chart = import("./chart.js").Chart;
type FittedScale = ReturnType<typeof import("./scales.js").fitScale>;
type Mosaic = import("./mosaic.js").Mosaic;
type Packs = import("./packs.js").Packs;
type Painter = import("./canvas.js").Painter;
type Pane = import("./pane.js").Pane;
type Sheet = import("./sheet.js").Sheet;
type Backend = import("./backend.js").ServerBackend;

/** Row and column of a patch. */
type Cell = [number, number];
/** A patch, the name of another token or "patches"; null or undefined for the model's own. */
type Query = Cell | string | null | undefined;
/** A head, or the fusion of all. */
type Head = number | Fusion;
type Fusion = "mean" | "max" | "min";
type Direction = "row" | "column";
/** A class, or a difference of classes, a text, or a likeness. */
type Target = number | TargetFields | null | undefined;
interface TargetFields {
  class?: number;
  against?: number;
  margin?: boolean;
  text?: string;
  like?: string;
  patch?: Cell;
}

/** 256 pixels, from the low to the high end. */
type ColourTable = Uint32Array;
type Numbers = Float32Array | Float64Array;
type ScaleName = "linear" | "robust" | "log" | "rank" | "zero";
type Percentiles = [number, number];
interface ScaleOptions {
  percentiles?: Percentiles;
  low?: number | null;
  high?: number | null;
  signed?: boolean;
  like?: ScaleName | null;
}
type FitScale = (maps: Numbers[], options?: ScaleOptions) => FittedScale;
interface ScaleRecord {
  name: ScaleName | null;
  title: string;
  help: string;
  caption: string;
  signed_caption: string;
}

/** How a map is drawn over its picture. */
interface Look {
  opacity?: number;
  fade?: boolean;
  drain?: boolean;
  /** Without the map. */
  isBare?: boolean;
  smooth?: boolean;
  grid?: boolean;
  part?: number;
  /** Colours of the patches in place of values. */
  raster?: HTMLCanvasElement;
}

/** What a pane shows. */
interface Drawing {
  patches?: Float32Array | null;
  scale: FittedScale;
  table: ColourTable;
  look: Look;
  marks: Mark[];
  /** From which patch to which a line goes. */
  arc?: [Cell, Cell] | null;
  /** Patches that the line below the layers would cover, while somebody points at it. */
  named: Cell[];
}
/** An outlined token. */
interface Mark {
  token: number | null;
  colour: string;
  isDashed?: boolean;
}

/** Draws a part of a figure, of this size. */
type FigurePicture = (context: CanvasRenderingContext2D, width: number, height: number) => void;
/** A picture or a text of a figure, at its left and top edge, or on its base line. */
interface FigureItem {
  x: number;
  y: number;
  width?: any;
  height?: any;
  draw?: FigurePicture;
  text?: string;
  isBold?: boolean;
}
interface FigurePanel {
  badge: string;
  caption: string;
  legend: { low: string; high: string; quantity: string; bar: FigurePicture } | null;
  /** Its height by its width. */
  ratio: number;
  draw: FigurePicture;
  /** Draw it from the original picture from now on. */
  enlarge?: () => Promise<void>;
}
interface FigureParts {
  badge: boolean;
  legend: boolean;
  caption: boolean;
}
interface FigureLayout {
  items: FigureItem[];
  width: number;
  height: number;
}

interface Parameter {
  name: string;
  title: string;
  help: string;
  kind: "layer" | "head" | "token" | "choice" | "number" | "switch" | "class";
  default: any;
  minimum: number;
  maximum: number;
  step: number;
  options: { title: string; value: any }[];
  on_page?: boolean;
}

interface Method {
  name: string;
  title: string;
  group: "token" | "layers" | "target";
  parameters: Parameter[];
  interpretation: string;
  citation: string;
  computed_by: "page" | "rollouts" | "quick" | "run";
  page_parameters: string[];
  about_a_class: boolean;
  begins_with_identity: boolean;
}

interface Probe {
  name: string;
  title: string;
  interpretation: string;
  citation: string;
  parameters: Parameter[];
}

interface Model {
  id: string;
  name: string;
  title: string;
  labels: string[];
  reads_text: boolean;
  /** Empty where squares can be hidden from it. */
  why_no_hiding: string;
  pools_by_attention: boolean;
  default_query: string | null;
  refusals: Record<string, string>;
  probe_refusals: Record<string, string>;
  patch: [number, number];
  fit: string;
  detail: number | null;
  trained_resolution: number;
  resolutions: { title: string; value: number | "native" | null }[];
  color_profile: string;
  steps: number[] | null;
  card: [string, string][];
  assumptions: string;
}

/** An analysis: of one picture and one model. */
interface Facts {
  uid: string;
  model: string;
  name: string;
  picture: string;
  step: number | null;
  fit: string;
  resolution: number | "native" | null;
  width: number;
  height: number;
  /** Of the original picture. */
  pixels: [number, number];
  /** Left, top, right and bottom edge of the model's input in the picture. */
  box: [number, number, number, number];
  layers: number;
  heads: number;
  rows: number;
  columns: number;
  prefix: string[];
  windows: number[];
  /** The token from which maps start by default. */
  start: number;
  /** Whether there is a file of all rollouts. */
  rolls: boolean;
  predictions: { index: number; probability: number }[];
  /** The far look with which the page opens. */
  look?: { layer: number; head: number; query: Cell; place: Cell; share: number; sentence: string; rows?: string } | null;
  /** When squares that change the answer are searched for. */
  flips?: "meanwhile" | "on request" | null;
  /** What was found of them, in a saved page. */
  flip?: Flip | null;
  outliers: { patches: Cell[]; about: string } | null;
  clip: { frames: number; picture?: string } | null;
  assumptions: string;
  /** What computed it, if it was the device of the page. */
  engine?: string;
  dark: { text: string; white: number | null } | null;
  is_converted: boolean;
}

/** Squares without which the answer is another one; none if they were not found. */
interface Flip {
  patches: Cell[];
  after: { index: number; probability: number };
  /** What the model says without them, as it answers of what is hidden. */
  changes: any;
}

interface View {
  model: string;
  picture: string;
  step: number | null;
  frame: number | null;
  white: number | null;
  color_profile: string | null;
  fit: string | null;
  resolution: number | "native" | null;
  method: string;
  parameters: Record<string, any>;
  pins: Query[];
  heads_off: [number, number][];
  patches_off: Cell[];
  probe: string;
  probe_parameters: Record<string, any>;
  /** The square to which what is alike is lit. */
  alike: Cell | null;
}

interface State {
  views: View[];
  layout: "one" | "slide" | "two" | "difference" | "alike";
  divider: number;
  colormap: string;
  scale: ScaleName | null;
  percentiles: Percentiles;
  /** Of a scale that is held. */
  low: number | null;
  high: number | null;
  opacity: number;
  fade: boolean;
  drain: boolean;
  smooth: boolean;
  grid: boolean;
  outliers: boolean;
  shared_scale: boolean;
  own_scales: boolean | null;
  /** Whose features are compared; null for the layer that finds places again best. */
  alike_layer: number | null;
  panel: string;
  guide: number;
}

interface Settings {
  methods: Method[];
  probes: Probe[];
  scales: ScaleRecord[];
  colours: Record<string, string>;
  fits: { name: string; title: string }[];
  examples: { id: string; url: string; name: string; caption?: string; is_covered?: boolean }[];
  models: { id: string; title: string; family: string; megabytes: number }[];
  overrides: string[];
  opens_any: boolean;
  /** Names of the models that the app offers on the visitor's device. */
  device_models?: string[];
  /** What only the app computes, in a sentence. */
  absent?: string;
  least_seen: number;
  max_text_chars: number;
  max_upload_bytes: number;
  max_clip_bytes: number;
}

/** A map with parameters. */
interface MapRequest {
  method: string;
  parameters: Record<string, any>;
}
/** A file of an analysis; `map` for one with the values of a map. */
interface AnalysisFile {
  name: string;
  map?: MapRequest;
}
type MapSource =
  | { kind: "live"; file: null }
  | { kind: "rollout"; file: AnalysisFile }
  | { kind: "map"; file: { name: string; map: MapRequest } };

/** What a page begins with; a saved one has files by name and maps, in base64, and one that runs the network where it is. */
interface Start {
  settings: Settings;
  state: State;
  /** What the visitor asked of each view, where that is not nothing. */
  questions?: Record<string, any>[];
  views: Facts[];
  models: Record<string, Model>;
  files?: Record<string, string>;
  maps?: (MapRequest & { content: string })[];
  /** What the model said of what was hidden, in a saved page. */
  changes?: any;
  device?: DeviceStart;
}

/** A network of a page that runs it: its part of the page, what its progress calls it, and what facts of its pictures say. */
interface DeviceModel extends Pick<Facts, "rolls" | "flips"> {
  part: string;
  title: string;
  /** Whose features find places of pictures again best. */
  alike_layer: number;
}
interface DeviceStart {
  models: Record<string, DeviceModel>;
  pictures: Record<string, { name: string; part: string }>;
  /** The longer side of the picture on the page, in pixels. */
  shown_side: number;
  /** The least share of a far look with which a picture opens. */
  least_share: number;
  /** What is said of far looks: of any, and then of some, by picture, layer, head and square. */
  findings: [string, string][];
  /** Where its parts are, if they are files. */
  folder: string;
  /** The address of the app that computes more; empty if there is none. */
  server: string;
}

/** Numbers with their shape. */
type Tensor = Float32Array & { shape: number[] };
type Tensors = Record<string, Tensor> & { metadata: Record<string, string> };

/** Steps done of a total, and what is being done. */
interface Progress {
  text: string;
  done: number;
  total: number;
  /** The file of a map that is not finished yet; of a comparison, the scores that are known. */
  unfinished?: any;
}
/** The values of a probe's tensor by its axes. */
interface Measurement {
  name: string;
  values: Tensor;
  axes: string[];
  quantity: string;
  names: Record<string, string[]>;
  indexes?: string;
  is_flag?: boolean;
}
/** What the figures of a probe are about. */
interface ProbeContext {
  probe: string;
  pane: Pane;
  measurements: Measurement[];
  parameters: Record<string, any>;
}
interface Point {
  x: number;
  y: number;
  colour: string;
  text: string;
  act?: () => void;
}
interface Line {
  name: string;
  colour: string;
  values: number[];
}
interface MosaicCell {
  title: string;
  paint: (context: CanvasRenderingContext2D, left: number, top: number, width: number, height: number) => void;
}
type AtPoint<Result> = (index: number, across: number, down: number) => Result;
interface MosaicOptions {
  ratio: number;
  columns?: number | null;
  maxWidth?: number;
  say?: AtPoint<string | null | undefined>;
  act?: AtPoint<any> | null;
}
type AtPatch<Result> = (index: number, cell: Cell, value: number) => Result;
interface MapsOptions {
  say: AtPatch<string>;
  act?: AtPatch<any> | null;
  wide?: boolean;
  maxWidth?: number;
  marked?: number[];
  quantity?: string;
}
interface ChartOptions {
  places: string[];
  axis: string;
  quantity: string;
  lines?: Line[];
  points?: Point[];
  mayBeLog?: boolean;
}
interface ShownProgress extends Progress {
  slot: string;
  method?: string;
}
/**
 * An error of a request: replaced by another, stopped, about something that is no longer kept, or final;
 * a checkpoint may fit some architectures.
 */
type RequestError = Error & {
  replaced?: boolean; stopped?: boolean; expired?: boolean; final?: boolean; architectures?: string[];
};
