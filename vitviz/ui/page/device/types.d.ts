// The kinds of values that the modules of the network in the page pass to each other.

/** The functions of kernels.c. Pointers are in bytes, counts in values. */
interface KernelFunctions {
  linear(x: number, weights: number, isBfloat16: number, bias: number, out: number, outStride: number, rows: number, depth: number,
    width: number, accumulate: number): void;
  layer_norm(x: number, weight: number, bias: number, out: number, rows: number, width: number, epsilon: number): void;
  activate(x: number, gradient: number, count: number, kind: number): void;
  multiply(x: number, factors: number, count: number): void;
  rotate(x: number, cosines: number, sines: number, rows: number, dim: number): void;
  attend(q: number, k: number, v: number, out: number, outStride: number, sums: number, scores: number, queries: number, keys: number,
    dim: number, scale: number, factor: number): void;
  linear_backward(g: number, gStride: number, weights: number, isBfloat16: number, out: number, rows: number, depth: number,
    width: number, accumulate: number): void;
  layer_norm_backward(x: number, weight: number, g: number, out: number, rows: number, width: number, epsilon: number,
    accumulate: number): void;
  attend_backward(q: number, k: number, v: number, g: number, gStride: number, gq: number, gk: number, gv: number, products: number,
    share: number, kind: number, scratch: number, tokens: number, dim: number, scale: number): void;
  positive_products(g: number, gStride: number, v: number, totals: number, share: number, scratch: number, tokens: number,
    dim: number): void;
}
/** WebAssembly with relaxed SIMD, or with SIMD. */
type KernelKind = "relaxed" | "simd";
type Kernels = import("./kernels.js").Kernels;
type Network = import("./encoder.js").Network;

type Gradients = import("./gradients.js").Gradients;

/** Where a tensor of a device file begins in its data, in bytes. */
interface FileTensor {
  dtype: "F32" | "BF16";
  offset: number;
}
/** A network that device_file.py wrote; see there. */
interface DeviceFile {
  name: string;
  config: NetworkConfig;
  input: NetworkInput;
  preprocessing: PreprocessingFacts;
  labels: string[];
  tensors: Record<string, FileTensor>;
  data: Uint8Array<ArrayBuffer>;
}
/** ViTConfig in vitviz/models/config.py. */
interface NetworkConfig {
  patch_height: number;
  patch_width: number;
  channels: number;
  width: number;
  depth: number;
  heads: number;
  head_width: number;
  mlp_width: number;
  classes: number;
  pooling: "cls" | "mean" | "mean of all" | "cls and mean" | "cls and distillation" | "attention";
  final_norm: "before pooling" | "after pooling" | "none";
  norm_epsilon: number;
  activation: "gelu" | "gelu tanh" | "quick gelu" | "silu" | "relu";
  representation_width: number;
  projection_width: number;
  probability: "softmax" | "sigmoid" | "identity" | "none";
}
/** The model's own input: its rows and columns of patches, the tokens before them, and the factor of the scores. */
interface NetworkInput {
  rows: number;
  columns: number;
  prefix: string[];
  scale: number;
}
/** Preprocessing in vitviz/images/preprocessing.py, and the size of the whole patches in its input. */
interface PreprocessingFacts {
  input_height: number;
  input_width: number;
  height: number;
  width: number;
  mean: number[];
  std: number[];
  fit: Fit;
  crop_fraction: number;
  interpolation: Interpolation;
  squash_fraction: number;
  rounding: "torchvision" | "transformers";
  backend: "pillow" | "torchvision" | "torchvision float";
  detail: number | null;
  color_profile: "apply" | "ignore";
}
type Fit = "crop" | "squash" | "native";
type Interpolation = "nearest" | "bilinear" | "bicubic" | "lanczos" | "box" | "hamming";

/** What a pass of the network may leave out; see `encode` of encoder.js. */
interface EncodeOptions {
  headFactors?: Float32Array | null;
  hiddenPatches?: number[];
  logitsOnly?: boolean;
  layers?: number;
}
/** A pass of the network; see `encode` of encoder.js. */
interface Encoding {
  logits: Float32Array;
  features: Float32Array;
  queries: Float32Array;
  keys: Float32Array;
  logSums: Float32Array;
  tokens: Float32Array;
  norms: Float32Array;
  pooled: Float32Array | null;
  /** The graphics card that computed it; nothing without one. */
  card?: string;
}

/** What a pass of the network asks of the others that compute its other tokens. */
interface Rank {
  rank: number;
  ranks: number;
  /** Sends this rank's parts of a layer's keys and values to all others, and waits for theirs. */
  share(layer: number, partsOf: (rank: number) => Float32Array[]): Promise<void>;
  /** Sends this rank's parts of all that was computed to the first rank, which waits for them. */
  gather(partsOf: (rank: number) => Float32Array[]): Promise<void>;
  /** Called before each layer; an exception from it ends the pass. */
  onLayer(layer: number): Promise<void>;
}

/** The contents of kernels-relaxed.wasm and kernels.wasm. */
interface KernelBinaries {
  relaxed?: BufferSource;
  simd?: BufferSource;
}
// What TypeScript's own declarations of WebGPU lack.
declare const GPUBufferUsage: Record<"COPY_DST" | "COPY_SRC" | "MAP_READ" | "STORAGE" | "UNIFORM", number>;
declare const GPUMapMode: { READ: number };
declare const GPUShaderStage: { COMPUTE: number };
/** The text of kernels.wgsl, and whether WebGPU in software will do, which is for tests. */
interface GpuOptions {
  shaders: string;
  software?: boolean;
}
type TeamOptions = EncodeOptions & { signal?: AbortSignal; apart?: boolean };
/** A pass of the network, forwards or backwards, or one that checks the graphics card. */
type TeamRequest =
  | { kind: "encode"; pixels: Float32Array; options: EncodeOptions }
  | { kind: "differentiate"; pixels: Float32Array; target: ScoreTarget; wants: GradientWants }
  | { kind: "check" };
/** What a team asks of its workers. */
type ToWorker =
  | { kind: "load"; file: ArrayBuffer; wasm: KernelBinaries; rank: number; ports: (MessagePort | null)[];
    gpu: GpuOptions | null }
  | (TeamRequest & { pass: number; isAlone: boolean })
  | { kind: "cancel"; pass: number };
/** What its workers answer about a pass, or about the graphics card. */
type FromWorker =
  | { pass: number; kind: "layer" }
  | { pass: number; kind: "answer"; answer: Encoding | Gradient | { card: string } | null }
  | { pass: number; kind: "failed"; isCancelled: boolean; message: string }
  | { kind: "gpu"; card: string; reason: string };

/** Where the network's input lies on a picture, as Geometry in vitviz/images/geometry.py: left, top, right and lower edge in pixels. */
interface PreparedPicture {
  width: number;
  height: number;
  box: number[];
  inputHeight: number;
  inputWidth: number;
}

/** A score: the logit of a class, minus that of another or the highest of the others; or the cosine with features of length 1. */
interface ScoreTarget {
  index?: number;
  against?: number;
  margin?: boolean;
  features?: Float32Array;
}
/** Of attention weights and their gradients; "keys" for the gradient of a number that is added to the scores of each key. */
type Products = "signed" | "positive" | "keys";
/** What a backward pass is to compute; see `differentiate` of gradients.js. */
interface GradientWants {
  products?: Products;
  /** Patches that no token attends to; not with the gradient of pixels. */
  hiddenPatches?: number[];
  gradCam?: boolean;
  pixels?: boolean;
  legrad?: boolean;
}
interface Gradient {
  score: number;
  logits: Float32Array;
  products: Float32Array | null;
  pooledProducts: Float32Array | null;
  gradCam: Float32Array | null;
  pixels: Float32Array | null;
  legrad: Float32Array | null;
}
