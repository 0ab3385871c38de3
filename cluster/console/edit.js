/**
 * Changes a key by compare-and-set: a write that would lose another's update is not made, and both values are shown.
 * @module
 */
import { html, Component, Problem, number, send } from "./lib.js";
import { Action, grantOf, quoted } from "./action.js";
import { Diff } from "./diff.js";
import { VALUE_BYTES, bytesOf, keyQuery } from "./value.js";

/** The forms that write and delete a key. props: {id: {key, key_b64}, version: the newest (null: none), me, onWritten(written), onDone} */
export class Edit extends Component {
  /** @param {any} props */
  constructor(props) {
    super(props);
    /** @type {any} what the write builds on; `theirs` after it was not made, `mine` what it would have written */
    this.state = { base: props.version, theirs: undefined, mine: undefined, at: 0 };
  }

  /** @param {any} request @param {(now: any) => void} onLost */
  async write(request, onLost) {
    const { results } = await send(request.method, request.path, { json: request.json });
    const { written, problem } = results[0];
    if (written) {
      this.props.onWritten(written);
      return written;
    }
    if (problem.code === "compare_failed") {
      const now = await send("GET", `/v1/kv?${keyQuery(this.props.id)}&versions=1&value_bytes=${VALUE_BYTES}`).catch((found) => found);
      onLost(now.versions ? now.versions[0] : now.code === "key_not_found" ? null : undefined);
    }
    throw new Problem(problem.status, problem.code, problem.message, problem.code === "compare_failed" ? {} : problem); // no leader would write it
  }

  /** Goes on with a value, on top of what the other wrote. @param {string | undefined} mine */
  take(mine) {
    const { theirs, at } = this.state;
    this.setState({ base: theirs, theirs: undefined, mine, at: at + 1 });
  }

  render() {
    const { id, me, onDone } = this.props;
    const { base, theirs, mine, at } = this.state;
    const revision = base ? base.revision : 0;
    const common = { me, onDone, needs: id.key === undefined ? [] : [grantOf("write", "keys", id.key)],
      unknown: () => "Look at the newest version of this key: it shows whether the write was applied.",
      done: (/** @type {any} */ answer) => `Revision ${number(answer.revision)}, record ${number(answer.index)}.` };
    const words = (/** @type {string[]} */ ...texts) => (id.key === undefined ? ["--base64", "--", id.key_b64, ...texts.map((each) => btoa(String.fromCharCode(...bytesOf(each, undefined))))] : ["--", ...[id.key, ...texts].map(quoted)]).join(" ");
    const request = (/** @type {object} */ write) => ({ method: "POST", path: "/v1/kv/batch", json: { writes: [{ ...id, if_revision: revision, ...write }] } });
    const old = mine ?? base?.value;
    const isText = !base || old !== undefined;
    const blocked = !isText ? "The value is no text: write it from a terminal, with raftlog put --base64." : old?.includes("\r") ? "Its lines end with a carriage return, which a form drops: write it from a terminal, with raftlog put." : base?.value_bytes ? "The value is too long for a form: write it from a terminal, with raftlog put." : "";
    const lost = (/** @type {any} */ text) => (/** @type {any} */ now) => this.setState({ theirs: now, mine: text });
    return html`<div class="actions">
      <${Action} key=${`put ${at}`} name=${base ? "Write a new value" : "Write the key"} ...${common} blocked=${blocked} about=${base ? `It is written only if the key is still at revision ${number(revision)}.` : "It is written only if there is still no such key."}
        fields=${[{ name: "value", label: "Value", kind: "lines", value: isText ? old || "" : "", optional: true }]}
        request=${({ value }) => request({ value })} shell=${({ value }) => `put --if-revision ${revision} ${words(value)}`}
        run=${(/** @type {any} */ sent) => this.write(sent, lost(sent.json.writes[0].value))} />
      ${base ? html`<${Action} key=${`delete ${at}`} name="Delete the key" danger ...${common} about="Its versions stay readable until the log is trimmed."
        request=${() => request({ delete: true })} shell=${() => `del --if-revision ${revision} ${words()}`}
        run=${(/** @type {any} */ sent) => this.write(sent, lost(undefined))} />` : null}</div>
      ${theirs === undefined ? null : html`<section class="lost" role="region" aria-label="Both values"><h3>Another client wrote this key first</h3>
        <div class="parts"><div><b>Now</b>, ${theirs ? `revision ${number(theirs.revision)}` : "deleted"}<pre class="value">${theirs ? theirs.value ?? "bytes" : ""}</pre></div>
          ${mine === undefined ? null : html`<div><b>Yours</b>, not written<pre class="value">${mine}</pre></div>`}</div>
        ${mine === undefined ? null : html`<${Diff} of="both values" before=${theirs} after=${{ value: mine }} />`}
        <p class="tools">${mine === undefined ? null : html`<button type="button" onClick=${() => this.take(mine)}>Take yours, and confirm it once more</button>`}
          <button type="button" onClick=${() => { this.take(undefined); onDone(); }}>Take theirs</button></p></section>`}`;
  }
}
