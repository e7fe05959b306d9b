// The file of a network, as device_file.py in vitviz/ui/explorer writes it, and where a patch of its input is.

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
 * Copies the pixels of a patch, "channel row column", out of a picture, or into it.
 * @param {Float32Array} pixels "channel height width"
 * @param {NetworkConfig} config
 * @param {NetworkInput} input
 * @param {number} patch
 * @param {Float32Array} values of the patch, and of others behind it
 * @param {boolean} isInto
 */
export function copyPatch(pixels, config, input, patch, values, isInto = false) {
  const { channels, patch_height: height, patch_width: width } = config, { rows, columns } = input;
  const top = Math.floor(patch / columns) * height, left = (patch % columns) * width;
  for (let line = 0; line < channels * height; line++) {
    const from = ((Math.floor(line / height) * rows * height) + top + (line % height)) * columns * width + left;
    if (isInto) pixels.set(values.subarray(line * width, (line + 1) * width), from);
    else values.set(pixels.subarray(from, from + width), line * width);
  }
}
