/**
 * Compares two values: JSON by its fields, text by its lines, bytes by their hex lines.
 * @module
 */
import { html, size } from "./lib.js";
import { bytesOf, jsonTokens, shownAs, visible } from "./value.js";

const CELLS_MAX = 1_000_000; // lines of one times lines of the other, beside what both begin and end with
const SHOWN_MAX = 400; // differences on the page
const AROUND = 2; // equal lines shown beside a difference

/**
 * The lines of both, each with "-" (only before), "+" (only after) or " ". Beyond CELLS_MAX all lines between the equal
 * start and end count as replaced.
 * @param {string[]} before @param {string[]} after @returns {[string, string][]}
 */
export function lineDiff(before, after) {
  let [start, end] = [0, 0];
  while (start < before.length && start < after.length && before[start] === after[start]) start++;
  while (end < before.length - start && end < after.length - start && before[before.length - 1 - end] === after[after.length - 1 - end]) end++;
  const [one, other] = [before.slice(start, before.length - end), after.slice(start, after.length - end)];
  const width = other.length + 1;
  const isSmall = one.length * other.length <= CELLS_MAX;
  const longest = new Uint32Array(isSmall ? (one.length + 1) * width : 0); // common lines of the rests of both
  for (let i = isSmall ? one.length - 1 : -1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      longest[i * width + j] = one[i] === other[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  /** @type {[string, string][]} */
  const found = before.slice(0, start).map((each) => [" ", each]);
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length) {
    const [left, right] = [i < one.length, j < other.length];
    if (isSmall && left && right && one[i] === other[j]) {
      found.push([" ", one[i++]]);
      j++;
    } else if (left && (!isSmall || !right || longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
      found.push(["-", one[i++]]);
    } else {
      found.push(["+", other[j++]]);
    }
  }
  return [...found, .../** @type {[string, string][]} */ (before.slice(before.length - end).map((each) => [" ", each]))];
}

/** The values of a JSON text as they are written, by their paths. @param {string[]} tokens */
function fieldsOf(tokens) {
  const found = new Map();
  /** @type {{list: boolean, name: string | number | null}[]} */
  const path = [];
  tokens.forEach((token, at) => {
    const top = path.at(-1);
    if (token === "," && top) top.name = top.list ? Number(top.name) + 1 : null;
    else if (token === "}" || token === "]") path.pop();
    else if (token !== ":") {
      if (top && !top.list && top.name === null) return void (top.name = JSON.parse(token));
      const opens = token === "{" || token === "[";
      const isEmpty = opens && /^[}\]]$/.test(tokens[at + 1]);
      if (!opens || isEmpty) found.set(path.map(({ list, name }) => (list ? `[${name}]` : `.${name}`)).join("").replace(/^\./, ""), isEmpty ? token + tokens[at + 1] : token);
      if (opens) path.push({ list: token === "[", name: token === "[" ? 0 : null });
    }
  });
  return found;
}

/**
 * The fields that differ: path, value before, value after; undefined where there is none. Null if one is no JSON.
 * @param {string} before @param {string} after @returns {[string, string | undefined, string | undefined][] | null}
 */
export function fieldDiff(before, after) {
  const [one, other] = [jsonTokens(before), jsonTokens(after)];
  if (!one || !other) return null;
  const [old, now] = [fieldsOf(one), fieldsOf(other)];
  return [...new Set([...old.keys(), ...now.keys()])].filter((path) => old.get(path) !== now.get(path)).map((path) => [path, old.get(path), now.get(path)]);
}

/** @param {any} of a version or record */
const lines = ({ value, value_b64 }) => (value !== undefined ? visible(value) : String(shownAs("hex", undefined, bytesOf(undefined, value_b64)))).split("\n");

/** @param {any} of a version or record */
const length = ({ value, value_b64, value_bytes }) => size(value_bytes ?? bytesOf(value, value_b64).length);

/** Lines with their marks. @param {[string, string | null][]} shown null: lines that are left out @param {string} of */
function marked(shown, of) {
  return html`<div class="value" tabindex="0" role="region" aria-label="Differences of ${of}"><pre class="diff">${shown.map(([mark, text]) => html`
    <span class=${mark === "-" ? "removed" : mark === "+" ? "added" : "faint"}>${text === null ? "  …" : `${mark} ${text}`}</span>`)}</pre></div>`;
}

/** What differs between two versions {value, value_b64, value_bytes, deleted}; null: there was none. `brief`: without the value where the other is missing; `of`: for its label. @param {any} props */
export function Diff({ before, after, brief, of }) {
  const [gone, isGone] = [!before || before.deleted, !after || after.deleted];
  if (gone && isGone) return html`<p class="faint">There was no value before, and there is none after.</p>`;
  if (gone || isGone) {
    const all = lines(gone ? after : before);
    return html`<p class=${gone ? "valid" : "invalid"}>${gone ? "There was no value before." : "The value is gone."}</p>
      ${brief ? null : marked([.../** @type {[string, string][]} */ (all.slice(0, SHOWN_MAX).map((each) => [gone ? "+" : "-", each])), ...(all.length > SHOWN_MAX ? [/** @type {[string, null]} */ ([" ", null])] : [])], of)}`;
  }
  const cut = before.value_bytes !== undefined || after.value_bytes !== undefined;
  const note = cut ? html`<p class="faint">Compared are the starts of both: ${length(before)} before, ${length(after)} after.</p>` : null;
  const fields = cut || before.value === undefined || after.value === undefined ? null : fieldDiff(before.value, after.value);
  if (fields?.length) {
    return html`<div class="wide" tabindex="0" role="region" aria-label="Differences of ${of}"><table class="diff"><thead><tr><th>field</th><th>before</th><th>after</th></tr></thead><tbody>
      ${fields.slice(0, SHOWN_MAX).map(([path, old, now]) => html`<tr><td>${visible(path)}</td>
        <td class="removed">${old === undefined ? "" : visible(old)}</td><td class="added">${now === undefined ? "" : visible(now)}</td></tr>`)}</tbody></table></div>
      ${fields.length > SHOWN_MAX ? html`<p class="faint">and ${fields.length - SHOWN_MAX} more fields</p>` : null}`;
  }
  const found = lineDiff(lines(before), lines(after));
  const near = found.map(([mark], at) => mark !== " " || found.slice(Math.max(0, at - AROUND), at + AROUND + 1).some(([other]) => other !== " "));
  if (!near.includes(true)) return html`${note}<p class="faint">${cut ? "They are equal." : "The value is the same."}</p>`;
  const shown = found.map((each, at) => /** @type {[string, string | null]} */ (near[at] ? each : [" ", null])).filter((_, at) => near[at] || near[at - 1]).slice(0, SHOWN_MAX);
  return html`${note}${marked(shown, of)}`;
}
