/**
 * Shows the consumer groups: where each stands, how far it is behind and since when, and moves or deletes one.
 * @module
 */
import { html, Page, Trouble, duration, nodeNow, number } from "./lib.js";
import { Action, grantOf, lacks, quoted } from "./action.js";
import { Chart } from "./charts.js";

const WATCH = "watch on cluster";
const EVERY_MS = 2000;
const POLLS_KEPT = 300; // ten minutes
const STARTS = { oldest: "the oldest record", newest: "behind the newest record", index: "an index" };

/** @type {Map<string, {times: number[], lags: number[]}>} by group: its lag while this tab was open */
const history = new Map();

export class GroupsPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.everyMs = EVERY_MS;
    this.name = props.parameters.get("group");
    /** @type {any} */
    this.last = null;
  }

  async load() {
    const missing = lacks(this.props.me, WATCH);
    const [found, explained] = await Promise.all([
      this.ask("/v1/consumers?consistency=stale"),
      missing ? { missing } : this.ask("/v1/explain/leaderless").catch((problem) => (problem.missing ? { missing: problem.missing } : Promise.reject(problem))),
    ]);
    const names = new Set(found.consumers.map((/** @type {any} */ each) => each.name));
    for (const name of history.keys()) if (!names.has(name)) history.delete(name);
    for (const { name, lag } of found.consumers) {
      const kept = history.get(name) || { times: [], lags: [] };
      history.set(name, { times: [...kept.times, Date.now() / 1000].slice(-POLLS_KEPT), lags: [...kept.lags, lag].slice(-POLLS_KEPT) });
    }
    return { found, explained, now: nodeNow() };
  }

  render() {
    const { found, explained, problem } = this.state;
    if (!found) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const view = explained.nodes?.[0];
    const held = explained.missing ? html`Whether one holds retention back is shown with the grant <code>${explained.missing}</code>.`
      : view.role !== "leader" ? "Whether one holds retention back only the leader knows: look at its console."
        : view.held_by ? html`Retention waits for <b>${view.held_by}</b>, which has stood at ${number(view.held_next)} for ${duration(view.held_ms)}.`
          : "None holds retention back.";
    return html`<${Trouble} problem=${problem?.status ? problem : null} />${this.name === null ? this.list(found, held, view?.held_by) : this.one(found, view?.held_by)}`;
  }

  /** @param {any} found @param {any} held @param {string} [holder] */
  list(found, held, holder) {
    const groups = [...found.consumers].sort((one, other) => other.lag - one.lag);
    return html`<h2>Consumer groups</h2>
      <p class="faint">${found.last_user_index ? html`The newest record of a user is <a href="#/entry?at=${found.last_user_index}">${number(found.last_user_index)}</a>.` : "There is no record of a user yet."}
        ${groups.length ? html` The farthest behind comes first. ${held}` : null}</p>
      ${groups.length ? html`<div class="wide" tabindex="0" role="region" aria-label="Consumer groups"><table><thead><tr><th>group</th><th class="n">lag in records</th><th>while this page is open</th><th class="n">oldest unread</th>
        <th class="n">next index</th><th>owner</th><th class="n">generation</th><th class="n">moved</th></tr></thead><tbody>
        ${groups.map((group) => html`<tr key=${group.name}><td><a href=${`#/groups?group=${encodeURIComponent(group.name)}`}>${kind(group.name)}</a>${group.name === holder ? html` <span class="unknown">holds retention back</span>` : null}</td>
          <td class="n ${group.lag ? "unknown" : "valid"}">${number(group.lag)}</td><td><${Spark} lags=${history.get(group.name)?.lags || []} /></td>
          <td class="n">${unread(group)}</td><td class="n"><a href="#/log?at=${group.position.next[0]}">${number(group.position.next[0])}</a></td>
          <td>${group.owner || html`<span class="faint">none</span>`}</td><td class="n">${number(group.generation)}</td><td class="n">${duration(Math.max(0, this.state.now - group.updated_ms))} ago</td></tr>`)}</tbody></table></div>`
        : html`<p>${none(this.props.me)} A reader makes one: <code>raftlog log --group NAME --follow</code></p>`}`;
  }

  /** @param {any} found @param {string} [holder] */
  one(found, holder) {
    const there = found.consumers.find((/** @type {any} */ each) => each.name === this.name);
    const group = (this.last = there || this.last); // of a deleted group the outcome is still shown
    const head = html`<p><a href="#/groups">← all consumer groups</a></p><h2>Consumer group ${kind(this.name)}</h2>`;
    if (!group) return html`${head}<p>There is no such group, or this user may not see it. A reader makes one: <code>raftlog log --group NAME --follow</code></p>`;
    const next = group.position.next[0];
    const kept = history.get(group.name);
    return html`${head}${there ? null : html`<p class="unknown">The group is deleted. It stood here:</p>`}
      <div class="facts">${[
        ["next index", html`<a href="#/log?at=${next}">${number(next)}</a>`], ["lag in records", number(group.lag)], ["oldest unread", unread(group)],
        ["owner", group.owner || "none"], ["generation", number(group.generation)], ["moved", `${duration(Math.max(0, this.state.now - group.updated_ms))} ago`],
      ].map(([name, value]) => html`<div><span class="faint">${name}</span><b>${value}</b></div>`)}</div>
      ${group.name === holder ? html`<p class="unknown">Retention waits for this group.</p>` : null}
      ${group.name.startsWith("sink/") ? html`<p class="unknown">A sink moves this group: its own place stands in its store. <code>raftlog sink status</code></p>` : null}
      ${kept && kept.times.length > 1 ? html`<${Chart} title="Lag while this page is open" unit="records" times=${kept.times} lines=${[["lag", kept.lags]]}
        shown=${{ from: kept.times[0], end: kept.times.at(-1) }} marks=${[]} />`
        : html`<p class="faint">The lag over time is drawn from the second answer on.</p>`}
      <div class="actions" key="actions-1">${this.actions(group, there ? "" : "There is no such group.")}</div>`;
  }

  /** @param {any} group @param {string} blocked */
  actions(group, blocked) {
    const path = `/v1/consumers/${encodeURIComponent(group.name)}`;
    const common = { blocked, me: this.props.me, needs: [grantOf("write", "groups", group.name)], onDone: () => this.reload(),
      unknown: () => "Look at its next index and generation above: they change if it was carried out." };
    const fenced = group.owner ? ` Its owner ${group.owner} is fenced, and must claim it again.` : "";
    return html`<${Action} ...${common} name="Reset the group" about="Moves it to any place, whoever owns it: records are read again, or skipped."
        fields=${[{ name: "start", label: "To", kind: "choice", choices: Object.entries(STARTS) },
          { name: "index", label: "Index", kind: "number", when: (/** @type {any} */ values) => values.start === "index" }]}
        effect=${async (/** @type {any} */ values) => {
          const [now, status] = await Promise.all([this.ask(`${path}?consistency=stale`), this.ask("/v1/status")]);
          const [next, end] = [now.position.next[0], status.last_user_index + 1];
          const to = values.start === "index" ? Number(values.index) : values.start === "oldest" ? status.oldest : end;
          return { values: { to, log: status.log, before: next }, words: html`<b>${moves(next, to)}</b>${to > end ? ` Index ${number(to)} is behind the newest record, ${number(end - 1)}.`
            : to < status.oldest ? ` The oldest record that can be read is ${number(status.oldest)}.` : ""}${fenced}` };
        }}
        request=${(/** @type {any} */ { to, log }) => ({ method: "PUT", path, json: { position: { log, next: { 0: to } }, reset: true } })}
        shell=${(/** @type {any} */ { to }) => `consumers reset ${quoted(group.name)} --to ${to}`}
        done=${(/** @type {any} */ answer) => `The group reads on at ${number(answer.position.next[0])}, in generation ${number(answer.generation)}; record ${number(answer.index)} says so.`} />
      <${Action} ...${common} danger name="Delete the group" about="Nothing is kept for it any more. Records stay."
        effect=${async () => ({ words: html`The position <b>${number(group.position.next[0])}</b> is forgotten: a reader of this name begins anew.${fenced}` })}
        request=${() => ({ method: "DELETE", path })} shell=${() => `consumers delete ${quoted(group.name)}`}
        done=${(/** @type {any} */ answer) => (answer.deleted ? `The group is deleted, by record ${number(answer.index)}.` : "There was no such group any more.")} />`;
  }
}

/** @param {number} next @param {number} to */
function moves(next, to) {
  if (to === next) return `The group stays at ${number(to)}.`;
  return to < next ? `${records(next - to)} will be read again, from ${number(to)} on.` : `${records(to - next)} will be skipped, ${number(next)} to ${number(to - 1)}.`;
}

/** @param {number} count */
export function records(count) {
  return count === 1 ? "1 record" : `${number(count)} records`;
}

/** That no group is there, as far as the user sees them. @param {any} me */
export function none(me) {
  return !me?.is_on || me.grants.includes("read on groups:*") ? "There is no consumer group." : html`There is no consumer group that this user may see. The missing grant: <code>read on groups:*</code>.`;
}

/** @param {any} group */
function unread(group) {
  return group.lag ? (group.lag_seconds === null ? "not known" : duration(group.lag_seconds * 1000)) : "–";
}

/** The lag as a small line. @param {{lags: number[]}} props */
function Spark({ lags }) {
  const high = Math.max(1, ...lags);
  const points = lags.map((lag, at) => `${(at * 118) / Math.max(1, lags.length - 1) + 1},${19 - (18 * lag) / high}`);
  return html`<svg class="spark s0" viewBox="0 0 120 20" role="img" aria-label=${`from ${number(lags[0])} to ${number(lags.at(-1))} records`}>
    <polyline class="line" points=${points.join(" ")} /></svg>`;
}

/** A group that a sink or an export moves is shown as such. @param {string} name */
function kind(name) {
  const [first, ...rest] = name.split("/");
  return first === "sink" && rest.length ? html`${rest.join("/")} <span class="faint">(a sink)</span>` : name;
}
