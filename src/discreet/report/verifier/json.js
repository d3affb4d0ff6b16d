// Strict JSON with the number types of Python: integers become BigInt, all other numbers become Number.
// A key that occurs twice, a number that is not finite and anything after the document are refused.

class Refused extends Error {}

function parseJson(text) {
  let at = 0;
  const fail = (reason) => {
    throw new Refused(`The file is not JSON written by Discreet (${reason}).`);
  };
  const blanks = () => {
    while (" \t\n\r".includes(text[at]) && at < text.length) at++;
  };
  const string = () => {
    const start = at++;
    while (text[at] !== '"') {
      if (at >= text.length) fail("a string does not end");
      at += text[at] === "\\" ? 2 : 1;
    }
    at++;
    return JSON.parse(text.slice(start, at));
  };
  const number = () => {
    const token = /^-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/.exec(text.slice(at, at + 400));
    if (!token) fail("a value is missing");
    at += token[0].length;
    if (token[1] === undefined && token[2] === undefined) return BigInt(token[0]);
    const value = Number(token[0]);
    return Number.isFinite(value) ? value : fail("a number is not finite");
  };
  const items = (close, read) => {
    at++;
    blanks();
    if (text[at] === close) return void at++;
    for (;;) {
      read();
      blanks();
      const next = text[at++];
      if (next === close) return;
      if (next !== ",") fail("a comma is missing");
      blanks();
    }
  };
  const value = (depth) => {
    if (depth > 200) fail("it is nested too deeply");
    blanks();
    if (text[at] === '"') return string();
    if (text[at] === "[") {
      const list = [];
      items("]", () => list.push(value(depth + 1)));
      return list;
    }
    if (text[at] === "{") {
      const found = new Map();
      items("}", () => {
        if (text[at] !== '"') fail("a key is missing");
        const key = string();
        blanks();
        if (text[at++] !== ":") fail("a colon is missing");
        if (found.has(key)) fail("a key occurs twice");
        found.set(key, value(depth + 1));
      });
      return found;
    }
    for (const [word, constant] of [["true", true], ["false", false], ["null", null]]) {
      if (text.startsWith(word, at)) {
        at += word.length;
        return constant;
      }
    }
    return number();
  };
  let document;
  try {
    document = value(0);
  } catch (error) {
    if (error instanceof Refused) throw error;
    fail("a string is damaged");
  }
  blanks();
  if (at < text.length) fail("something follows the document");
  return document;
}

// The text of a float in Python: the shortest digits that give the same float, an exponent outside of 1e-4 .. 1e16.
function floatText(value) {
  if (!Number.isFinite(value)) throw new Refused("A number is not finite.");
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const [mantissa, exponent] = Math.abs(value).toExponential().split("e");
  const digits = mantissa.replace(".", ""), power = Number(exponent);
  if (power < -4 || power >= 16) {
    const rest = digits.length > 1 ? `.${digits.slice(1)}` : "";
    const size = String(Math.abs(power)).padStart(2, "0");
    return `${sign}${digits[0]}${rest}e${power < 0 ? "-" : "+"}${size}`;
  }
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${digits}`;
  const whole = digits.slice(0, power + 1).padEnd(power + 1, "0");
  return `${sign}${whole}.${digits.slice(power + 1) || "0"}`;
}

const byCodePoint = (left, right) => {
  const [a, b] = [Array.from(left), Array.from(right)];
  for (let i = 0; i < Math.min(a.length, b.length); i++) {
    if (a[i] !== b[i]) return a[i].codePointAt(0) - b[i].codePointAt(0);
  }
  return a.length - b.length;
};

const asciiText = (string) =>
  JSON.stringify(string).replace(/[\u007f-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);

// The canonical text of a document, of which digests are taken: sorted keys, no blanks, ASCII only.
function canonical(data) {
  if (typeof data === "bigint") return String(data);
  if (typeof data === "number") return floatText(data);
  if (typeof data === "string") return asciiText(data);
  if (Array.isArray(data)) return `[${data.map(canonical).join(",")}]`;
  if (data instanceof Map) {
    const keys = [...data.keys()].sort(byCodePoint);
    return `{${keys.map((key) => `${asciiText(key)}:${canonical(data.get(key))}`).join(",")}}`;
  }
  return String(data);
}

const bytesOf = (text) => new TextEncoder().encode(text);
const hexOf = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const bytesOfHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));

async function sha256(bytes) {
  return hexOf(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
}

const digestOf = (data) => sha256(bytesOf(canonical(data)));
