/**
 * Draws rows of a node's history over time, with uPlot, in the colours of the page.
 * @module
 */
import { html, Component, moment } from "./lib.js";

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = ["--c0", "--c1", "--c2", "--c3"];
const HEIGHT = 150;

/** @param {number} seconds */
const clock = (seconds) => moment(seconds * 1000).slice(0, 8);

/**
 * One chart. `lines`: the label and the values of each; `times` in seconds; `unit` behind the numbers.
 * props: {title, unit, times, lines: [string, (number|null)[]][]}
 */
export class Chart extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {any} */
    this.plot = null;
    /** @type {HTMLElement | null} */
    this.box = null;
    this.restyle = () => this.draw();
    this.media = matchMedia("(prefers-color-scheme: dark)");
  }

  componentDidMount() {
    this.draw();
    this.watcher = new ResizeObserver(() => this.plot?.setSize({ width: this.width(), height: HEIGHT }));
    if (this.box) this.watcher.observe(this.box);
    this.media.addEventListener("change", this.restyle);
  }

  componentDidUpdate() {
    this.plot?.setData(this.data());
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

  draw() {
    this.plot?.destroy();
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const series = this.props.lines.map(([label], /** @type {number} */ at) => ({
      label,
      stroke: colour(COLOURS[at]),
      width: 1.5,
      points: { show: false },
      value: (/** @type {any} */ _, /** @type {number | null} */ value) =>
        value === null || value === undefined ? "–" : `${value.toLocaleString("en")} ${this.props.unit}`,
    }));
    const options = {
      width: this.width(),
      height: HEIGHT,
      legend: { live: true },
      cursor: { sync: { key: "history" }, drag: { x: false, y: false } },
      axes: [{ ...axis, space: 80, size: 28, values: (/** @type {any} */ _, /** @type {number[]} */ marks) => marks.map(clock) }, { ...axis, size: 56 }],
      scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ high) => [0, high > 0 ? high * 1.1 : 1] } },
      series: [{ label: "at", value: (/** @type {any} */ _, /** @type {number | null} */ at) => (at ? clock(at) : "–") }, ...series],
    };
    this.plot = new /** @type {any} */ (window).uPlot(options, this.data(), this.box);
  }

  render() {
    return html`<figure><figcaption>${this.props.title}</figcaption><div ref=${(/** @type {any} */ box) => { this.box = box; }}></div></figure>`;
  }
}
