/**
 * Writes msgpack as text in the manner of JSON. Integers of 64 bits stay exact; bytes are base64, those of an extension after its type.
 * @module
 */
const DEPTH_MAX = 100; // deeper has more spaces than text

/** The text, or null if these bytes are no single value of msgpack. @param {Uint8Array} bytes */
export function msgpack(bytes) {
  try {
    const reader = new Reader(bytes);
    const text = reader.value(0);
    return reader.at === bytes.length ? text : null;
  } catch {
    return null;
  }
}

class Reader {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.at = 0;
  }

  /** The next bytes. Throws RangeError at the end. @param {number} count */
  take(count) {
    if (this.at + count > this.bytes.length) throw new RangeError("cut");
    this.at += count;
    return this.bytes.subarray(this.at - count, this.at);
  }

  /** A whole number of 1, 2, 4 or 8 bytes. @param {number} count */
  integer(count, sort = "Uint") {
    this.take(count);
    const name = `get${count === 8 ? "Big" : ""}${sort}${count * 8}`;
    return /** @type {any} */ (this.view)[name](this.at - count);
  }

  /** @param {number} count @param {number} depth @param {boolean} named */
  many(count, depth, named) {
    if (depth > DEPTH_MAX) throw new RangeError("deep");
    const parts = [];
    for (let each = 0; each < count; each++) parts.push(named ? `${this.value(depth + 1)}: ${this.value(depth + 1)}` : this.value(depth + 1));
    const pad = `\n${"  ".repeat(depth)}`;
    const inside = parts.length ? `${pad}  ${parts.join(`,${pad}  `)}${pad}` : "";
    return named ? `{${inside}}` : `[${inside}]`;
  }

  /** @param {number} count */
  text(count) {
    return JSON.stringify(new TextDecoder("utf-8", { fatal: true }).decode(this.take(count)));
  }

  /** @param {number} count @param {string} [name] */
  data(count, name = "bytes") {
    return `${name}(${btoa(String.fromCharCode(...this.take(count)))})`;
  }

  /** @param {number} depth @returns {string} */
  value(depth) {
    const [byte] = this.take(1);
    if (byte < 0x80 || byte >= 0xe0) return String(byte < 0x80 ? byte : byte - 256);
    if (byte < 0xa0) return this.many(byte & 15, depth, byte < 0x90);
    if (byte < 0xc0) return this.text(byte & 31);
    if (byte <= 0xc3 && byte !== 0xc1) return ["null", "", "false", "true"][byte - 0xc0];
    if (byte >= 0xc4 && byte <= 0xc6) return this.data(this.integer(1 << (byte - 0xc4)));
    if (byte >= 0xc7 && byte <= 0xc9) return this.data(this.integer(1 << (byte - 0xc7)) + 1, "extension");
    if (byte === 0xca || byte === 0xcb) {
      const count = byte === 0xca ? 4 : 8;
      this.take(count);
      return String(count === 4 ? this.view.getFloat32(this.at - 4) : this.view.getFloat64(this.at - 8));
    }
    if (byte >= 0xcc && byte <= 0xcf) return String(this.integer(1 << (byte - 0xcc)));
    if (byte >= 0xd0 && byte <= 0xd3) return String(this.integer(1 << (byte - 0xd0), "Int"));
    if (byte >= 0xd4 && byte <= 0xd8) return this.data((1 << (byte - 0xd4)) + 1, "extension");
    if (byte >= 0xd9 && byte <= 0xdb) return this.text(this.integer(1 << (byte - 0xd9)));
    if (byte >= 0xdc) return this.many(this.integer(byte & 1 ? 4 : 2), depth, byte >= 0xde);
    throw new RangeError("not msgpack");
  }
}
