// One network for the page: its device file, as device_file.py in vitviz/ui/explorer writes it, and what runs it.

import { Network } from "./encoder.js";

const DEVICE_FORMAT = "vitviz device 1";

/**
 * The contents of a device file; its data are a view of the buffer.
 * @param {ArrayBuffer} buffer
 * @returns {DeviceFile}
 */
export function readDeviceFile(buffer) {
  if (buffer.byteLength < 8) throw Error("This is not a network for the page: the file is too short");
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  if (length > buffer.byteLength - 8) throw Error("This is not a network for the page, or not all of it");
  const { __metadata__: metadata, ...entries } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  if (!metadata?.[DEVICE_FORMAT]) throw Error(`This is not a network for the page: expected the format ${DEVICE_FORMAT}`);
  const data = new Uint8Array(buffer, 8 + length);
  /** @type {Record<string, FileTensor>} */
  const tensors = {};
  for (const [name, { dtype, data_offsets: [offset, end] }] of Object.entries(entries)) {
    if (end > data.length) throw Error(`The file of the network ends before ${name}`);
    tensors[name] = { dtype, offset };
  }
  return { ...JSON.parse(metadata[DEVICE_FORMAT]), tensors, data };
}

/**
 * A network on these kernels, whose memory it takes.
 * @param {DeviceFile} file
 * @param {Kernels} kernels
 */
export const openNetwork = (file, kernels) => new Network(file, kernels);
