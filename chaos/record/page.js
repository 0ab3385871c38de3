// Draws the page of a run, of chaos or of the simulator: raftlog.chaos.record.page puts the data in.
"use strict";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const { result, rows, tables, outcomes, bad } = data;
const [KEY, PROCESS, FUNCTION, OUTCOME, BEGAN, ENDED, TEXT] = [1, 2, 3, 4, 5, 6, 7]; // the columns of a row
const LANES_MAX = 40, LISTED_MAX = 200, MESSAGES_MAX = 400, PACKED_MAX = 6;
const LANE = 15, NODE = 22, DOTS = 200, RATE = 70;
const COLOURS = { ok: "--valid", fail: "--faint", info: "--unknown" };
const ROLES = {
  leader: ["--valid", 1], follower: ["--c0", 0.3], candidate: ["--unknown", 0.9], pre_candidate: ["--unknown", 0.45],
  learner: ["--c3", 0.45], fenced: ["--invalid", 1], silent: ["--faint", 0.08], down: ["--faint", 0.08],
};
const events = result.events || [];
const faults = result.faults.filter((each) => each.began_ns !== null && each.outcome !== "skipped")
  .map((each) => ({ ...each, from: each.began_ns / 1000, until: (each.healed_ns ?? 1e6 * result.load_s) / 1000 }));
const fault_lanes = [...new Set(faults.map((each) => each.lane))].sort();
const nodes = [...new Set(result.stretches.map((each) => each.node))].sort((a, b) => a - b);
const endUs = rows.reduce((end, row) => Math.max(end, row[BEGAN], row[ENDED]), Math.max(result.load_s * 1e6, ...faults.map((each) => each.until), 1000));
const anomalies = bad.filter((each) => each.impossible)
  .map((each) => ({ at: each.impossible.at, text: `${each.impossible.text}\nfits nowhere`, key: each.key, process: each.impossible.process }));
if (result.broken_us !== null && result.broken_us !== undefined) anomalies.push({ at: result.broken_us, text: result.problems[0] });
anomalies.sort((a, b) => a.at - b.at);
const NEVER = -1; // an operation without an answer goes on until the end
const isOpen = new Set(rows.filter((row) => row[ENDED] === NEVER));
for (const row of isOpen) row[ENDED] = endUs;
const orders = new Map(bad.map((each) => [each.key, new Map(each.order.map(({ process, at }, place) => [`${process} ${at}`, place + 1]))]));

// -- text ----------------------------------------------------------------------------------------------------------

const ODD = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
/** The text with characters that one cannot see, or that turn its direction, as their numbers. */
const visible = (text) => String(text).replace(ODD, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
const grouped = (number) => number.toLocaleString("en");
const seconds = (s) => (s === null || s === undefined ? "" : `${s.toFixed(s < 10 ? 3 : 1)} s`);
/** A time of the run, the finer the closer one looks. */
const atUs = (us) => `${(us / 1e6).toFixed(seen.until - seen.from >= 1e6 ? 3 : 6)} s`;
const ms = (us) => `${(us / 1000).toFixed(1)} ms`;

function element(tag, text = "", kind = "") {
  const made = document.createElement(tag);
  made.textContent = visible(text ?? "");
  if (kind) made.className = kind;
  return made;
}

/** A box that the keyboard can scroll. */
function scrolled(box, title) {
  box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", title);
  return box;
}

/** A section with a table; a name of a column that begins with # has numbers. Each line is [cells, a place in time]. */
function section(title, heads, lines, note = "") {
  const box = element("section"), wide = scrolled(element("div", "", "scroll wide"), title), table = element("table"), head = element("tr");
  heads.forEach((name) => head.append(element("th", name.replace("#", "") || "#", name.startsWith("#") ? "n" : "")));
  table.append(head);
  for (const [cells, span] of lines) {
    const row = element("tr");
    cells.forEach((cell, at) => row.append(element("td", cell, heads[at].startsWith("#") ? "n" : cell in VERDICTS ? cell : "")));
    if (span) {
      const button = element("button", row.firstChild.textContent);
      button.title = "show it in the time line";
      button.onclick = () => { look(span[0], span[1]); byId("time").scrollIntoView({ block: "center" }); };
      row.firstChild.replaceChildren(button);
    }
    table.append(row);
  }
  wide.append(table);
  box.append(element("h2", title), ...(note ? [element("p", note, "faint")] : []), wide);
  return box;
}
const VERDICTS = { valid: 1, invalid: 1, unknown: 1 };

function list(texts, kind) {
  const made = element("ul", "", `why ${kind}`);
  texts.forEach((text) => made.append(element("li", text)));
  if (texts.length) byId("why").append(made);
}

// -- what is seen --------------------------------------------------------------------------------------------------

const asked = new URLSearchParams(location.hash.slice(1));
const numberOf = (name, otherwise) => { const found = parseFloat(asked.get(name)); return Number.isFinite(found) ? found * 1e6 : otherwise; };
const seen = { from: numberOf("from", 0), until: numberOf("until", endUs), key: asked.get("key") ?? "", outcome: asked.get("outcome") ?? "", words: asked.get("words") ?? "" };

/** Shows that stretch of time, a millisecond at least, within the run. */
function look(from, until) {
  const wide = Math.min(endUs, Math.max(1000, until - from));
  seen.from = Math.max(0, Math.min(from, endUs - wide));
  seen.until = seen.from + wide;
  later();
}
const zoom = (times) => { const middle = (seen.from + seen.until) / 2, half = ((seen.until - seen.from) * times) / 2; look(middle - half, middle + half); };
const move = (share) => { const by = (seen.until - seen.from) * share; look(seen.from + by, seen.until + by); };

/** The next of these moments behind the middle of the view, or the first. */
function next(places, at) {
  const middle = (seen.from + seen.until) / 2;
  return places.find((each) => at(each) > middle + 1) ?? places[0];
}
function nextAnomaly() {
  const found = next(anomalies, (each) => each.at);
  if (!found) return;
  if (found.key !== undefined) seen.key = tables.keys[found.key];
  look(found.at - Math.min(4e5, endUs / 8), found.at + Math.min(4e5, endUs / 8));
}
function nextFault() {
  const found = next([...faults].sort((a, b) => a.from + a.until - b.from - b.until), (each) => (each.from + each.until) / 2);
  if (found) span(found.from, found.until);
}
/** Shows a stretch in the middle of the view, with as much around it. */
function span(from, until) { const wide = Math.max(1e5, until - from); look((from + until - 2 * wide) / 2, (from + until + 2 * wide) / 2); }

function chosen() {
  const key = tables.keys.indexOf(seen.key), outcome = outcomes.indexOf(seen.outcome), words = seen.words.toLowerCase();
  return rows.filter((row) => row[ENDED] >= seen.from && row[BEGAN] <= seen.until && (key < 0 || row[KEY] === key) && (outcome < 0 || row[OUTCOME] === outcome)
    && (!words || `${tables.keys[row[KEY]]} ${tables.processes[row[PROCESS]]} ${row[TEXT]}`.toLowerCase().includes(words)));
}

// -- the picture ---------------------------------------------------------------------------------------------------

let pen, width, left, hits = [], colours = {};
const place = (us) => left + ((us - seen.from) / (seen.until - seen.from)) * (width - left - 8);
const clip = (x) => Math.max(left, Math.min(width - 8, x));
const colour = (name) => (colours[name] ??= getComputedStyle(document.documentElement).getPropertyValue(name).trim());

function fill(name, alpha, x, y, w, h) {
  pen.globalAlpha = alpha; pen.fillStyle = colour(name); pen.fillRect(x, y, w, h); pen.globalAlpha = 1;
}
function line(name, x1, y1, x2, y2, dash = []) {
  pen.strokeStyle = colour(name); pen.setLineDash(dash); pen.beginPath(); pen.moveTo(x1, y1); pen.lineTo(x2, y2); pen.stroke(); pen.setLineDash([]);
}
function label(text, x, y, room = Infinity, name = "--faint") {
  const letters = Math.floor(room / 5.6);
  if (letters < 3) return;
  const shown = visible(text);
  pen.fillStyle = colour(name); pen.fillText(shown.length > letters ? `${shown.slice(0, letters - 1)}…` : shown, x, y);
}
/** A bar from one time to another with its text in it, and what the tip says; nothing if it is out of view. */
function bar(from, until, y, high, [name, alpha], text, tip) {
  if (until < seen.from || from > seen.until) return;
  const a = clip(place(from)), wide = Math.max(2, clip(place(until)) - a);
  fill(name, alpha, a, y, wide, high);
  if (text && wide > 22) label(text, a + 3, y + high - 4, wide - 4, alpha > 0.6 ? "--paper" : "--ink");
  hits.push([a - 1, y, wide + 2, high, tip]);
}

/** Where faults of one lane lie that overlap: each in the first row that is free. */
function packed(of) {
  const ends = [];
  return of.map((fault) => {
    let row = ends.findIndex((end) => end <= fault.from);
    if (row < 0) row = Math.min(ends.length, PACKED_MAX - 1);
    ends[row] = Math.max(fault.until, fault.from + endUs / 60);
    return row;
  });
}
const laneRows = fault_lanes.map((lane) => { const of = faults.filter((each) => each.lane === lane); return [lane, of, packed(of)]; });

function draw() {
  const canvas = byId("time"), mine = chosen();
  const all = [...new Set(mine.map((row) => row[PROCESS]))].sort((a, b) => tables.processes[a].localeCompare(tables.processes[b], "en", { numeric: true }));
  const lanes = all.slice(0, LANES_MAX), has = rows.length > 0;
  const faultRows = laneRows.reduce((sum, [, , places]) => sum + Math.max(0, ...places) + 1, 0);
  const tall = 20 + (has ? DOTS + RATE + 22 : 0) + faultRows * LANE + 8 + LANE + nodes.length * NODE + 8 + lanes.length * LANE + 22;
  width = canvas.clientWidth; left = width < 500 ? 66 : 100; colours = {}; hits = [];
  const scale = window.devicePixelRatio || 1;
  canvas.style.height = `${tall}px`; canvas.width = width * scale; canvas.height = tall * scale;
  pen = canvas.getContext("2d");
  pen.scale(scale, scale); pen.font = "11px system-ui, sans-serif"; pen.direction = "ltr";
  axis(tall);
  for (const fault of faults) {
    if (fault.outcome !== "installed" || fault.until < seen.from || fault.from > seen.until) continue;
    const a = clip(place(fault.from));
    fill(`--c${fault_lanes.indexOf(fault.lane) % 4}`, 0.07, a, 18, Math.max(1, clip(place(fault.until)) - a), tall - 36);
  }
  let top = 20;
  if (has) { dots(mine, top); top += DOTS + 12; rate(top); top += RATE + 10; }
  top = drawFaults(top) + 8;
  label("no leader", 4, top + 11);
  for (const [from, until] of data.leaderless) bar(from, until, top, LANE - 3, ["--invalid", 1], "", `no node said that it leads\n${atUs(from)} to ${atUs(until)}: ${seconds((until - from) / 1e6)}`);
  top += LANE;
  const nodesTop = top;
  for (const node of nodes) { drawNode(node, top); top += NODE; }
  messages(nodesTop);
  top += 8;
  drawLanes(mine, lanes, top);
  for (const each of anomalies) {
    const x = place(each.at);
    if (x < left - 1 || x > width - 7) continue;
    line("--invalid", x, 14, x, tall - 18, [5, 3]);
    pen.fillStyle = colour("--invalid"); pen.beginPath(); pen.moveTo(x - 6, 6); pen.lineTo(x + 6, 6); pen.lineTo(x, 16); pen.fill();
    hits.unshift([x - 7, 4, 14, 14, `${atUs(each.at)}: ${each.text}`], [x - 2, 16, 4, tall - 34, `${atUs(each.at)}: ${each.text}`]);
  }
  say(mine, lanes.length, all.length);
}

function axis(tall) {
  const every = nice((seen.until - seen.from) / Math.max(2, (width - left) / 110)), digits = every < 1e6 ? Math.ceil(6 - Math.log10(every)) : 0;
  for (let us = Math.ceil(seen.from / every) * every; us <= seen.until; us += every) {
    const x = place(us), text = `${(us / 1e6).toFixed(digits)} s`;
    line("--line", x, 16, x, tall - 18);
    for (const y of [12, tall - 6]) label(text, Math.min(Math.max(x - 10, left - 6), width - 8 - 6 * text.length), y);
  }
}
function nice(rough) {
  const ten = 10 ** Math.floor(Math.log10(rough));
  return ten * ([1, 2, 5].find((times) => times * ten >= rough) || 10);
}

/** Each operation at its beginning, the higher the longer it took. */
function dots(mine, top) {
  const high = (us) => top + DOTS - ((Math.log10(Math.max(us, 100)) - 2) / 5) * DOTS;
  for (const [us, name] of [[100, "0.1 ms"], [1e3, "1 ms"], [1e4, "10 ms"], [1e5, "100 ms"], [1e6, "1 s"], [1e7, "10 s"]]) {
    label(name, 4, high(us) + (us === 1e7 ? 10 : 3)); line("--line", left, high(us), width - 8, high(us));
  }
  const crowd = new Map();
  for (const outcome of ["ok", "fail", "info"]) {
    const which = outcomes.indexOf(outcome), size = outcome !== "ok" || mine.length < 5000 ? 3 : 2;
    for (const row of mine) {
      if (row[OUTCOME] !== which || row[BEGAN] < seen.from) continue;
      const x = place(row[BEGAN]), y = Math.max(top, high(row[ENDED] - row[BEGAN])) - size / 2, cell = Math.floor(x) * 1000 + Math.floor(y), many = crowd.get(cell) || 0;
      if (many < 3) { crowd.set(cell, many + 1); fill(COLOURS[outcome], outcome === "ok" ? 0.6 : 0.9, x, y, size, size); } // more on one spot look the same
    }
  }
}

/** Operations that ended in each stretch, a second. */
function rate(top) {
  const bin = data.rates.bin_us, first = Math.floor(seen.from / bin), last = Math.min(data.rates.ok.length - 1, Math.floor(seen.until / bin));
  const step = Math.max(1, Math.ceil((last - first + 1) / 240)), points = (counts) => {
    const found = [];
    for (let at = first; at <= last; at += step) {
      const part = counts.slice(at, at + step);
      found.push([(at + part.length / 2) * bin, part.reduce((sum, one) => sum + one, 0) / ((part.length * bin) / 1e6)]);
    }
    return found;
  };
  const lines = [["--unknown", points(data.rates.other)], ["--valid", points(data.rates.ok)]];
  const most = Math.max(1, ...lines.flatMap(([, each]) => each.map(([, value]) => value)));
  for (const [name, each] of lines) {
    pen.strokeStyle = colour(name); pen.lineWidth = 1.5; pen.beginPath();
    for (const [us, value] of each) pen.lineTo(clip(place(us)), top + RATE - (value / most) * RATE);
    pen.stroke(); pen.lineWidth = 1;
  }
  label(`${grouped(Math.round(most))}/s`, 4, top + 9); label("ended", 4, top + RATE - 13); label("a second", 4, top + RATE);
}

function drawFaults(from) {
  let top = from;
  laneRows.forEach(([lane, of, places], number) => {
    label(lane, 4, top + 11);
    of.forEach((fault, at) => bar(fault.from, fault.until, top + places[at] * LANE, LANE - 2, [`--c${number % 4}`, fault.outcome === "installed" ? 0.9 : 0.3], fault.nemesis,
      [`${fault.number} ${fault.nemesis} (${fault.outcome}): ${fault.target}`, `${atUs(fault.from)} to ${atUs(fault.until)}`, [fault.proof, fault.note].filter(Boolean).join(" "),
        fault.standstill_s === undefined ? "" : `longest standstill ${seconds(fault.standstill_s)}, next write after ${seconds(fault.recovery_s)}`].filter(Boolean).join("\n")));
    top += (Math.max(0, ...places) + 1) * LANE;
  });
  return top;
}

function drawNode(node, top) {
  label(`node ${node}`, 4, top + 14);
  for (const each of result.stretches) {
    if (each.node !== node) continue;
    const [from, until] = [each.from_ns / 1000, each.until_ns / 1000];
    bar(from, until, top + 1, NODE - 5, ROLES[each.role] || ["--invalid", 1], each.role === "leader" ? `term ${each.term}` : each.role === "down" ? "down" : "",
      `node ${node}: ${each.role.replace("_", "-")}, term ${each.term}\n${atUs(from)} to ${atUs(until)}`);
  }
  for (const fault of faults) if ((fault.nodes || []).includes(node)) bar(fault.from, fault.until, top + NODE - 6, 3, ["--c1", 1], "", `${fault.number} ${fault.nemesis}: ${fault.proof}`);
}

/** Messages between the nodes, from where each was sent to where it arrived or was lost, once few enough are in view. */
function messages(top) {
  const sent = new Map(), found = [];
  for (const [at, node, text] of events) {
    const parts = /^(->|<-|x ) *(\d+) .*#(\d+)/.exec(text);
    if (!parts) continue;
    if (parts[1] === "->") sent.set(parts[3], [at, node, text]);
    else if (sent.has(parts[3]) && at >= seen.from && sent.get(parts[3])[0] <= seen.until) found.push([...sent.get(parts[3]), at, node, parts[1] !== "<-"]);
  }
  if (!found.length || found.length > MESSAGES_MAX) return;
  const high = (node) => top + nodes.indexOf(node) * NODE + NODE / 2 - 1;
  for (const [from, sender, text, until, to, isLost] of found) {
    line(isLost ? "--invalid" : "--ink", place(from), high(sender), place(until), high(to), isLost ? [3, 3] : []);
    fill(isLost ? "--invalid" : "--ink", 1, place(until) - 1.5, high(to) - 1.5, 3, 3);
    for (const [at, node] of [[from, sender], [until, to]]) hits.unshift([place(at) - 3, high(node) - 4, 6, 8, `${atUs(from)} node ${sender} ${text}${isLost ? ", lost" : `\narrived at ${atUs(until)}`}`]);
  }
  pen.clearRect(0, top, left - 1, nodes.length * NODE);
  nodes.forEach((node, at) => label(`node ${node}`, 4, top + at * NODE + 14));
}

function drawLanes(mine, lanes, from) {
  const tops = new Map(lanes.map((process, at) => [process, from + at * LANE]));
  lanes.forEach((process) => label(tables.processes[process].replace(/^\d+$/, "client $&"), 4, tops.get(process) + 11, left - 6));
  for (const row of mine) {
    const top = tops.get(row[PROCESS]), process = tables.processes[row[PROCESS]];
    if (top === undefined) continue;
    const wrong = anomalies.some((each) => each.process === process && each.at === row[BEGAN] && each.key === row[KEY]);
    const number = orders.get(row[KEY])?.get(`${process} ${row[BEGAN]}`), text = `${number ? `${number}. ` : ""}${row[TEXT]}`;
    bar(row[BEGAN], row[ENDED], top + 1, LANE - 2, wrong ? ["--invalid", 1] : [COLOURS[outcomes[row[OUTCOME]]], isOpen.has(row) ? 0.35 : 0.9], text,
      `${process}, ${tables.keys[row[KEY]]}: ${row[TEXT]}\n${atUs(row[BEGAN])}${isOpen.has(row) ? ", no answer" : ` to ${atUs(row[ENDED])}`}, ${outcomes[row[OUTCOME]]}`
      + (number ? `\nnumber ${number} in the longest order that makes sense` : "") + (wrong ? "\nfits nowhere" : ""));
  }
}

/** What is in view, in words and as lists; and the address of it. */
function say(mine, lanes, all) {
  const parts = [`${atUs(seen.from)} to ${atUs(seen.until)} of ${atUs(endUs)}`, `${grouped(mine.length)} operations in view`];
  if (lanes < all) parts.push(`${lanes} of ${all} clients are drawn: zoom in or filter for the others`);
  if (rows.length < data.total) parts.push(`${grouped(rows.length)} of ${grouped(data.total)} operations are on this page: all that did not end well, of the others every so many`);
  for (const [name, count] of Object.entries(data.left_out)) if (count) parts.push(`${grouped(count)} earlier ${name} are left out`);
  byId("view").textContent = visible(parts.join("; "));
  const words = seen.words.toLowerCase();
  const operations = mine.slice(0, LISTED_MAX).map((row) => [[atUs(row[BEGAN]), isOpen.has(row) ? "no answer" : ms(row[ENDED] - row[BEGAN]), tables.processes[row[PROCESS]], tables.keys[row[KEY]], row[TEXT], outcomes[row[OUTCOME]]], [row[BEGAN] - (row[ENDED] - row[BEGAN]), 2 * row[ENDED] - row[BEGAN]]]);
  const lines = events.filter(([at, , text]) => at >= seen.from && at <= seen.until && (!words || text.toLowerCase().includes(words)));
  const newest = lines.slice(-LISTED_MAX).map(([at, node, text]) => [[atUs(at), node || "all", text], [at - 2000, at + 2000]]);
  const cut = (shown, of, which) => (shown < of ? `The ${which} ${shown} of ${grouped(of)}: zoom in or filter for the others.` : "");
  inView.replaceChildren(...(rows.length ? [section("Operations in view", ["began", "#took", "client", "key", "operation", "outcome"], operations, cut(operations.length, mine.length, "first"))] : []),
    ...(events.length ? [section("Events in view", ["time", "node", "what"], newest, cut(newest.length, lines.length, "last"))] : []));
  for (const name of ["key", "outcome"]) byId(name).value = seen[name];
  const address = new URLSearchParams({ from: (seen.from / 1e6).toFixed(6), until: (seen.until / 1e6).toFixed(6), key: seen.key, outcome: seen.outcome, words: seen.words });
  for (const [name, value] of [...address]) if (!value) address.delete(name);
  history.replaceState(null, "", seen.from === 0 && seen.until === endUs && address.size === 2 ? location.pathname : `#${address}`);
}

// -- the parts that stay -------------------------------------------------------------------------------------------

const inView = element("div");

function head() {
  byId("verdict").textContent = result.verdict; byId("verdict").className = result.verdict;
  byId("says").textContent = visible(`${data.sentence[0].toUpperCase()}${data.sentence.slice(1)}.`);
  document.title = visible(`${result.verdict}: raftlog ${result.scenario}, seed ${result.seed}`);
  byId("command").textContent = visible(result.command);
  const problems = [...result.problems, ...result.workloads.flatMap((each) => [...each.log_problems, ...each.check.problems].map((text) => `${each.name}: ${text}`))];
  if (problems.length > 1 || !data.sentence.endsWith(problems[0])) list(problems, "invalid"); // the sentence has a single one
  list(result.missing.map((text) => `too little happened: ${text}`), "unknown");
  const installed = faults.filter((each) => each.outcome === "installed");
  const recovery = result.recovery_s, facts = {
    scenario: result.scenario, seed: result.seed, nodes: result.nodes, load: seconds(result.load_s), operations: grouped(result.operations), "carried out a second": grouped(result.rate),
    "faults that took effect": `${installed.length} of ${result.faults.length}`, "kinds of faults": new Set(installed.map((each) => each.nemesis)).size, "at once": result.overlapping_max,
    leaders: result.leaders.length, "without a leader": seconds(result.without_leader_s),
    ...Object.fromEntries(Object.entries(result.happened).map(([kind, count]) => [kind, kind in result.met ? `${count}, ${result.met[kind]} met by requests` : count])),
    "last index": result.last_index && grouped(result.last_index),
    "from a fault's end to the next write": recovery && `p50 ${seconds(recovery.p50)}, p99 ${seconds(recovery.p99)}, max ${seconds(recovery.max)}`,
    ended: result.ended.replace("T", " ").replace("+00:00", " UTC"),
  };
  for (const [name, value] of Object.entries(facts)) {
    if (value === undefined || value === null || value === "") continue;
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value)); byId("facts").append(pair);
  }
}

function legend() {
  const names = [...(rows.length ? Object.entries(COLOURS).map(([name, of]) => [name, of, 1]) : []), ...fault_lanes.map((name, at) => [name, `--c${at % 4}`, 0.9]),
    ["no leader", "--invalid", 1], ...["leader", "follower", "candidate", "pre_candidate", "learner", "fenced"].filter((role) => result.stretches.some((each) => each.role === role)).map((role) => [role.replace("_", "-"), ...ROLES[role]])];
  for (const [name, of, alpha] of names) {
    const pair = element("span"), swatch = element("i");
    swatch.style.background = `color-mix(in srgb, var(${of}) ${100 * alpha}%, transparent)`;
    pair.append(swatch, name); byId("legend").append(pair);
  }
}

function sections() {
  const counts = (by, outcome) => grouped(by[outcome] || 0), lines = result.workloads.flatMap((each) => Object.entries(each.counts).map(([f, by]) => {
    const took = data.latency.find((one) => one.workload === each.name && one.function === f);
    return [[each.name, f, counts(by, "ok"), counts(by, "fail"), counts(by, "info"), ...(took ? took.us.map(ms) : ["", "", "", ""])]];
  }));
  const add = (...parts) => byId("sections").append(section(...parts));
  byId("sections").append(inView);
  const has = (name) => result.faults.some((each) => each[name]);
  const more = has("standstill_s") ? ["#longest standstill", "#to the next write"] : [];
  add("Faults", ["#", "fault", "outcome", "#from", "#lasted", ...more, "at", "proof, and what was seen"], result.faults.map((each) => {
    const began = each.began_ns ?? each.at_s * 1e9, ended = each.healed_ns ?? began;
    return [[each.number, each.nemesis, each.outcome, seconds(began / 1e9), seconds((ended - began) / 1e9), ...(more.length ? [seconds(each.standstill_s), seconds(each.recovery_s)] : []), each.target,
      [each.proof, each.note].filter(Boolean).join("; ")], each.began_ns === null ? null : [(1.5 * began - 0.5 * ended) / 1000 - 5e4, (1.5 * ended - 0.5 * began) / 1000 + 5e4]];
  }));
  if (lines.length) add("Operations by function and outcome", ["workload", "function", "#ok", "#fail", "#info", "#p50", "#p90", "#p99", "#max"], lines);
  if (result.workloads.length) {
    add("Workloads", ["workload", "verdict", "model", "#operations", "#checked in", "unknown writes, settled by the log", "counts"], result.workloads.map((each) => [[
      each.name, each.verdict, each.check.model, grouped(each.check.operations), seconds(each.check.seconds), `${each.settled["applied"]} were applied, ${each.settled["not applied"]} were not`,
      Object.entries(each.check.counts).map(([name, count]) => `${grouped(count)} ${name}`).join(", ")]]));
  }
  const digests = Object.entries(result.digests || {}), short = (digest) => (digest ? Object.values(digest).join(" ") : "none");
  if (digests.length) {
    const same = (part) => new Set(digests.map(([, each]) => JSON.stringify(each.refused || each[part]))).size === 1;
    const alike = same("state") && same("log") && !digests.some(([, each]) => each.refused);
    add("Digests that each node computed at the end", ["node", "#index", "#revision", "state", "log"], digests.map(([node, each]) => [[node, each.index, each.revision, each.refused || short(each.state), short(each.log)]]),
      alike ? `All ${digests.length} are the same.` : "They are not all the same.");
    byId("sections").lastChild.querySelector("p").className = alike ? "valid" : "invalid";
  }
  if (result.failover.length) {
    add("From the loss of a leader to the next acknowledged write", ["loss", "#times", "#p50", "#p90", "#p99", "#longest", "goal", "reached"], result.failover.map((row) => [[
      row.loss, row.count, ...["p50_s", "p90_s", "p99_s", "max_s"].map((name) => ms(1e6 * row[name])), row.goal || "", row.within_goal === undefined ? "" : row.within_goal ? "yes" : "no"]]));
  }
  for (const [title, texts] of Object.entries(result.lists || {})) {
    if (!texts.length) continue;
    byId("sections").append(element("h2", title), scrolled(element("pre", texts.join("\n"), "scroll"), title));
  }
}

// -- people --------------------------------------------------------------------------------------------------------

let waits = false;
/** Draws once before the next frame, however often it is asked. */
function later() {
  if (!waits) requestAnimationFrame(() => { waits = false; draw(); });
  waits = true;
}

function controls() {
  for (const [at, name] of tables.keys.entries()) byId("key").append(new Option(visible(`${name}${bad.some((each) => each.key === at) ? " (not valid)" : ""}`), name));
  byId("key").prepend(new Option("each key", ""));
  for (const name of outcomes) byId("outcome").append(new Option(name, name));
  if (!rows.length) for (const name of ["key", "outcome"]) byId(name).hidden = true;
  byId("words").value = seen.words;
  byId("anomaly").disabled = !anomalies.length;
  const acts = { in: () => zoom(0.5), out: () => zoom(2), left: () => move(-0.25), right: () => move(0.25), all: () => look(0, endUs), anomaly: nextAnomaly };
  for (const [id, act] of Object.entries(acts)) byId(id).onclick = act;
  for (const id of ["key", "outcome", "words"]) byId(id).oninput = () => { seen[id] = byId(id).value; later(); };
  const keys = { "+": acts.in, "=": acts.in, "-": acts.out, "−": acts.out, ArrowLeft: acts.left, ArrowRight: acts.right, 0: acts.all, Home: acts.all, a: nextAnomaly, f: nextFault };
  document.onkeydown = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "SELECT"].includes(event.target.tagName)) return;
    if (event.key === "/") { event.preventDefault(); byId("words").focus(); return; }
    const act = event.target === byId("time") || !event.key.startsWith("Arrow") ? keys[event.key] : undefined;
    if (act) { event.preventDefault(); act(); }
  };
  const canvas = byId("time");
  let start = null;
  const x = (event) => event.clientX - canvas.getBoundingClientRect().left;
  const us = (event) => seen.from + ((x(event) - left) / (width - left - 8)) * (seen.until - seen.from);
  canvas.onpointerdown = (event) => { start = us(event); tip(event); };
  canvas.onpointerup = (event) => { if (start !== null && Math.abs(us(event) - start) > (seen.until - seen.from) / 100) look(Math.min(start, us(event)), Math.max(start, us(event))); start = null; };
  canvas.ondblclick = acts.all;
  canvas.onpointermove = (event) => tip(event);
  canvas.onpointerleave = () => { byId("tip").style.display = "none"; start = null; };
}

function tip(event) {
  const box = byId("time").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top, shown = byId("tip");
  const hit = hits.find(([a, b, w, h]) => x >= a && x <= a + w && y >= b && y <= b + h);
  shown.style.display = hit ? "block" : "none";
  if (!hit) return;
  shown.textContent = visible(hit[4]);
  shown.style.left = `${Math.max(4, Math.min(event.clientX + 12, window.innerWidth - shown.offsetWidth - 6))}px`;
  shown.style.top = `${Math.min(event.clientY + 14, window.innerHeight - shown.offsetHeight - 6)}px`;
}

head(); legend(); controls(); sections();
window.onresize = later;
matchMedia("(prefers-color-scheme: dark)").onchange = later;
draw();
document.body.dataset.drawn = "yes";
