/**
 * Draws a node's history over time with uPlot, and its events as marks over it, in the colours of the page.
 * @module
 */
import { html, Component, moment } from "./lib.js";

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = ["--c0", "--c1", "--c2", "--c3"];
const LEVELS = ["info", "warning", "error"];
const LEVEL_COLOURS = ["--faint", "--unknown", "--invalid"];
const HEIGHT = 130;
const TICKS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 10800, 21600, 86400]; // seconds between two times
const AXIS = 26; // pixels of the line of times below a chart
const SPAN_MIN = 60; // steps that are shown at least: less would stretch the first seconds
const MARKS = 120; // places for marks of events over the whole span
const ROWS_MAX = 600; // that a node keeps of seconds
const NEAR = 6; // pixels between the cursor and a mark that it shows

/** @param {number} seconds @param {number} [every] seconds between two labels */
function clock(seconds, every = 1) {
  return moment(seconds * 1000).slice(0, every < 60 ? 8 : 5);
}

/** Rows of `/v1/history`: all of them at first, then only the new ones of seconds; those of minutes once a minute. */
export class Rows {
  constructor() {
    /** @type {any} */
    this.kept = null;
    this.at = 0;
  }

  /** Whether all have to be asked for: these few of seconds do not continue them. @param {number} step @param {any} few */
  lacks(step, few) {
    if (this.kept?.step_s !== step) return true;
    if (step !== few.step_s) return performance.now() - this.at > 1000 * step;
    const fresh = this.fresh(few);
    return fresh < 0 || fresh > few.columns.writes.length;
  }

  /** How many rows of the answer are new. @param {any} answer */
  fresh(answer) {
    return Math.round((answer.end_ms - this.kept.end_ms) / 1000 / answer.step_s);
  }

  /** All rows. @param {any} answer */
  begin(answer) {
    this.at = performance.now();
    return (this.kept = answer);
  }

  /** The rows so far with the new ones of seconds; rows of minutes stay as they are. @param {any} few */
  go(few) {
    if (this.kept.step_s !== few.step_s) return this.kept;
    const fresh = this.fresh(few);
    const columns = Object.entries(few.columns).map(([name, values]) =>
      [name, [...this.kept.columns[name], ...values.slice(values.length - fresh)].slice(-ROWS_MAX)]);
    return (this.kept = { ...few, columns: Object.fromEntries(columns) });
  }
}

/** The times of the rows in seconds, and the span that the charts show. @param {any} history */
export function span(history) {
  const count = history.columns.writes.length;
  const end = history.end_ms / 1000;
  const times = Array.from({ length: count }, (_, at) => end - (count - 1 - at) * history.step_s);
  return { times, from: Math.min((times[0] ?? end) - 2 * history.step_s, end - SPAN_MIN * history.step_s), end };
}

/** The places of values that have none beside them: no line shows them. @param {(number | null)[]} values */
export const lone = (values) => values.flatMap((each, at) => (each === null || (values[at - 1] ?? values[at + 1] ?? null) !== null ? [] : [at]));

/** An event in words. @param {any} event */
export function words(event) {
  const fields = Object.entries(event.fields).filter(([name]) => name !== "node").map(([name, value]) => `${name} ${value}`);
  return [event.event.replaceAll("_", " "), fields.join(", ")].filter(Boolean).join(": ");
}

/** The events of the span, those of one place together: their time in seconds, level and words. @param {any[]} events @param {any} shown */
export function marks(events, { from, end }) {
  /** @type {Map<number, any>} */
  const places = new Map();
  const width = Math.ceil((end - from) / MARKS); // whole seconds: a mark stays one while the span moves
  for (const event of events) {
    const seconds = event.time_ms / 1000;
    if (seconds < from || seconds > end) continue;
    const place = Math.floor(seconds / width);
    const mark = places.get(place) || { place, seconds, level: 0, events: [] };
    mark.level = Math.max(mark.level, LEVELS.indexOf(event.level));
    mark.events.push(event);
    places.set(place, mark);
  }
  return [...places.values()].sort((one, other) => one.place - other.place);
}

/** @param {any} mark */
function told(mark) {
  const newest = mark.events.slice(0, 4).reverse().map((/** @type {any} */ event) => `${clock(event.time_ms / 1000)} ${words(event)}`);
  return newest.join(" · ") + (mark.events.length > 4 ? ` · and ${mark.events.length - 4} more` : "");
}

/** The events over the charts: a mark at its time, whose words show when it is pointed at or has the focus. */
export class TimeLine extends Component {
  render() {
    const { marks, shown } = this.props;
    const { told: text } = this.state;
    const say = (/** @type {any} */ mark) => () => this.setState({ told: mark && told(mark) });
    return html`<div class="timeline" role="group" aria-label="Events over time">${marks.map((/** @type {any} */ mark) => html`
        <button type="button" key=${mark.events.at(-1).number} class=${LEVELS[mark.level]} style=${{ left: `${(100 * (mark.seconds - shown.from)) / (shown.end - shown.from)}%` }}
          aria-label=${told(mark)} onMouseEnter=${say(mark)} onFocus=${say(mark)} onMouseLeave=${say(null)} onBlur=${say(null)}>
          ${["●", "▲", "■"][mark.level]}</button>`)}
      <span class="from faint">${clock(shown.from, 60)}</span><span class="end faint">now</span></div>
      <p class="told" role="status">${text || html`<span class="faint">Events of this node: ● information ▲ warning ■ error. Point at a mark for its words.</span>`}</p>`;
  }
}

/**
 * One chart, and the newest value of each line, or the values under the cursor.
 * props: {title, unit, times, lines: [string, (number|null)[]][], shown: the span, marks}; times in seconds, `unit` behind the numbers.
 */
export class Chart extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {any} */
    this.plot = null;
    /** @type {HTMLElement | null} */
    this.box = null;
    this.state = { at: null, mark: null };
    this.restyle = () => this.draw();
    this.media = matchMedia("(prefers-color-scheme: dark)");
  }

  componentDidMount() {
    this.draw();
    this.watcher = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height: HEIGHT }));
    if (this.box) this.watcher.observe(this.box);
    this.media.addEventListener("change", this.restyle);
  }

  componentDidUpdate(/** @type {any} */ before) {
    if (before.times !== this.props.times) this.plot?.setData(this.data());
  }

  componentWillUnmount() {
    this.media.removeEventListener("change", this.restyle);
    this.watcher?.disconnect();
    this.plot?.destroy();
  }

  width() {
    return Math.max(200, this.box?.clientWidth || 0);
  }

  data() {
    return [this.props.times, ...this.props.lines.map((/** @type {any} */ line) => line[1])];
  }

  /** The mark at the cursor. @param {any} plot */
  near(plot) {
    return this.props.marks.find((/** @type {any} */ mark) => Math.abs(plot.valToPos(mark.seconds, "x") - plot.cursor.left) < NEAR);
  }

  draw() {
    this.plot?.destroy();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const series = this.props.lines.map(([label], /** @type {number} */ at) => ({
      label, stroke: colour(COLOURS[at]), width: 1.5,
      points: { show: false, size: 4, fill: colour(COLOURS[at]), filter: (/** @type {any} */ plot, /** @type {number} */ line) => lone(plot.data[line]) },
    }));
    const options = {
      width: this.width(),
      height: HEIGHT,
      padding: [8, 28, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "history" }, drag: { x: false, y: false } },
      axes: [
        { ...axis, size: AXIS, space: 62, incrs: TICKS, values: (/** @type {any} */ _, /** @type {number[]} */ at, ...[, , every]) => at.map((each) => clock(each, every)) },
        { ...axis, size: 50, space: 28 },
      ],
      scales: {
        x: { range: () => [this.props.shown.from, this.props.shown.end] },
        y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ high) => [0, high > 0 ? high * 1.1 : 1] },
      },
      series: [{}, ...series],
      hooks: {
        draw: [(/** @type {any} */ plot) => this.drawMarks(plot)],
        setCursor: [(/** @type {any} */ plot) => {
          const at = plot.cursor.left < 0 ? null : plot.cursor.idx;
          const mark = at === null ? null : this.near(plot);
          if (at !== this.state.at || mark !== this.state.mark) this.setState({ at, mark });
        }],
      },
    };
    this.plot = new /** @type {any} */ (window).uPlot(options, this.data(), this.box);
  }

  /** @param {any} plot */
  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.setLineDash([3, 3]);
    for (const mark of this.props.marks) {
      const x = Math.round(plot.valToPos(mark.seconds, "x", true)) + 0.5;
      ctx.strokeStyle = colour(LEVEL_COLOURS[mark.level]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  render() {
    const { title, unit, times, lines } = this.props;
    const { at, mark } = this.state;
    const row = at ?? times.length - 1;
    const shown = (/** @type {any} */ value) => (value === null || value === undefined ? "–" : `${value.toLocaleString("en", { maximumSignificantDigits: 3 })} ${unit}`);
    return html`<figure><figcaption>${title} <span class="legend">${lines.map(([label, values], /** @type {number} */ line) => html`
        <span class="s${line}"><i></i>${label} <b>${shown(values[row])}</b></span>`)}${at === null ? null : html`<span class="faint">${clock(times[at])}</span>`}</span></figcaption>
      <div ref=${(/** @type {any} */ box) => { this.box = box; }}></div>
      ${mark ? html`<p class="under">${told(mark)}</p>` : null}</figure>`;
  }
}
