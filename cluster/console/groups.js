/**
 * Shows the consumer groups: where each stands, how far it is behind, and which process owns it.
 * @module
 */
import { html, Page, Trouble, duration, nodeNow, number } from "./lib.js";

export class GroupsPage extends Page {
  async load() {
    const found = await this.ask("/v1/consumers");
    return { found, now: nodeNow() };
  }

  render() {
    const { found, problem, now } = this.state;
    if (!found) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const groups = [...found.consumers].sort((one, other) => other.lag - one.lag);
    return html`<h2>Consumer groups</h2>
      <${Trouble} problem=${problem} />
      <p class="faint">The newest record of a user is <a href="#/entry?at=${found.last_user_index}">${number(found.last_user_index)}</a>. The farthest behind comes first.</p>
      ${groups.length ? html`<div class="wide" tabindex="0" role="region" aria-label="Consumer groups"><table><thead><tr><th>group</th><th class="n">next index</th><th class="n">lag in records</th>
        <th class="n">oldest unread</th><th>owner</th><th class="n">moved</th></tr></thead><tbody>
        ${groups.map((group) => html`<tr key=${group.name}><td>${kind(group.name)}</td>
          <td class="n"><a href="#/log?at=${group.position.next[0]}">${number(group.position.next[0])}</a></td>
          <td class="n ${group.lag ? "unknown" : "valid"}">${number(group.lag)}</td>
          <td class="n">${group.lag ? (group.lag_seconds === null ? "not known" : duration(group.lag_seconds * 1000)) : "–"}</td>
          <td>${group.owner || html`<span class="faint">none</span>`}</td>
          <td class="n">${duration(Math.max(0, now - group.updated_ms))} ago</td></tr>`)}</tbody></table></div>`
        : html`<p>There is no group that this user may see. A reader makes one: <code>raftlog log --group NAME --follow</code></p>`}`;
  }
}

/** A group that a sink or an export moves is shown as such. @param {string} name */
function kind(name) {
  const [first, ...rest] = name.split("/");
  return first === "sink" && rest.length ? html`${rest.join("/")} <span class="faint">(a sink)</span>` : name;
}
