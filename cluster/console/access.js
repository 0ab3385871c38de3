/**
 * Shows users, roles, grants and tokens, and changes them; makes a token, which it shows once.
 * @module
 */
import { html, Page, Time, Trouble, number } from "./lib.js";
import { Action, Copied, lacks, quoted } from "./action.js";

const EVERY_MS = 2000;
const ACCESS = "access on cluster";
const DAY_MS = 86_400_000;

/** @param {string} kind @param {string} name */
const link = (kind, name) => html`<a href=${`#/access?${kind}=${encodeURIComponent(name)}`}>${name}</a>`;
/** @param {string} text */
const lines = (text) => text.split("\n").map((each) => each.trim()).filter(Boolean);

export class AccessPage extends Page {
  /** @param {any} props */
  constructor(props) {
    super(props);
    this.everyMs = EVERY_MS;
    const [[kind, name] = ["", ""]] = [...props.parameters].filter(([each]) => each !== "as_of");
    this.kind = /** @type {string} */ (kind);
    this.name = /** @type {string} */ (name);
    /** @type {any} what it is about, also once it is deleted: the outcome is still shown */
    this.last = null;
  }

  async load() {
    const me = await this.ask("/v1/access/me?consistency=stale");
    return { me, access: lacks(me, ACCESS) ? null : await this.ask("/v1/access?consistency=stale") };
  }

  render() {
    const { me, access, problem } = this.state;
    if (access && !access.is_on) return html`<${Off} users=${access.users.length} />`;
    const missing = lacks(me, ACCESS);
    if (!me) return problem ? html`<${Trouble} problem=${problem} retry=${() => this.reload()} />` : html`<p class="faint">Asking the node …</p>`;
    const shown = { users: [], roles: [], tokens: [], ...access };
    return html`<${Trouble} problem=${problem?.status ? problem : null} />${this.kind ? this.one(shown) : this.all(shown, missing)}`;
  }

  /** What all actions have. @param {any} fields of the body, by the values @param {(values: any) => string} shell */
  common(fields, shell, blocked = "") {
    return { me: this.state.me, needs: [ACCESS], blocked, onDone: () => this.reload(), shell,
      request: (/** @type {any} */ values, /** @type {any} */ made) => ({ method: "POST", path: "/v1/access", json: fields(values, made) }),
      unknown: () => "The tables show whether it was carried out. It may simply be sent again.",
      done: (/** @type {any} */ answer) => `It counts from record ${number(answer.index)} on.` };
  }

  /** @param {any} access @param {string} missing */
  all(access, missing) {
    const { me } = this.state;
    const hidden = missing ? html`<p class="unknown">Not shown. The missing grant: <code>${missing}</code></p>` : null;
    return html`
      ${me?.is_on ? html`<h2>You</h2><dl><dt>user</dt><dd>${me.user}</dd><dt>named by</dt><dd>${me.named_by}${me.expires_ms ? html`, until <${Time} ms=${me.expires_ms} day />` : null}</dd>
        <dt>roles</dt><dd>${me.roles.join(", ") || "none"}</dd><dt>grants</dt><dd>${me.grants.map((/** @type {string} */ each) => html`<code>${each}</code> `)}</dd></dl>` : null}
      <h2>Users</h2>${hidden || this.users(access)}
      <div class="actions" key="actions-1"><${Action} ...${this.common((/** @type {any} */ { name, roles }) => ({ action: "set_user", name, roles, condition: "new" }), ({ name, roles }) => `user set ${quoted(name)}${withRoles(roles)}`)}
        name="Make a user" about="The name in a client certificate, or a name for tokens alone." fields=${[{ name: "name", label: "Name" }, roleField(access, [])]} /></div>
      <h2>Roles</h2>${hidden || this.roles(access)}
      <div class="actions" key="actions-2"><${Action} ...${this.common((/** @type {any} */ { name, grants }) => ({ action: "set_role", name, grants: lines(grants), condition: "new" }), ({ name, grants }) => `role set ${quoted(name)} ${lines(grants).map(quoted).join(" ")}`)}
        name="Make a role" about="A set of grants, for any number of users." fields=${[{ name: "name", label: "Name" }, { name: "grants", label: "Grants, one a line", kind: "lines", hint: "read on keys:orders/*\nread on log" }]} /></div>
      <h2>Tokens</h2>${hidden || (access.tokens.length ? this.tokens(access.tokens) : html`<p class="faint">There is none. The page of a user makes one.</p>`)}`;
  }

  /** @param {any} access */
  users({ users, tokens }) {
    return table("Users", ["user", "roles", "tokens", "state"], users.map((/** @type {any} */ each) => [link("user", each.name), each.roles.map((/** @type {string} */ role) => html`${link("role", role)} `),
      number(tokens.filter((/** @type {any} */ token) => token.user === each.name).length), each.blocked ? html`<b class="invalid">blocked</b>` : "active"]));
  }

  /** @param {any} access */
  roles({ users, roles }) {
    return table("Roles", ["role", "grants", "users"], roles.map((/** @type {any} */ each) => [html`${link("role", each.name)}${each.built_in ? html` <span class="faint">built in</span>` : null}`,
      each.grants.map((/** @type {string} */ grant) => html`<code>${grant}</code> `), number(users.filter((/** @type {any} */ user) => user.roles.includes(each.name)).length)]));
  }

  /** @param {any[]} tokens */
  tokens(tokens) {
    return table("Tokens", ["id", "user", "label", "made", "ends"], tokens.map((each) => [link("token", each.id), link("user", each.user), each.label, html`<${Time} ms=${each.created_ms} day />`,
      each.expires_ms ? html`<span class=${each.expires_ms < Date.now() ? "invalid" : ""}><${Time} ms=${each.expires_ms} day /></span>` : "never"]));
  }

  /** The page of one user, role or token. @param {any} access */
  one(access) {
    const id = this.kind === "token" ? "id" : "name";
    const there = (access[`${this.kind}s`] || []).find((/** @type {any} */ each) => each[id] === this.name);
    const it = (this.last = there || this.last);
    const gone = there ? "" : `There is no such ${this.kind}.`;
    const draw = { user: () => this.user(access, it, gone), role: () => this.role(access, it, gone), token: () => this.token(it, gone) }[this.kind];
    return html`<p><a href="#/access">← all users, roles and tokens</a></p><h2>${this.kind[0].toUpperCase() + this.kind.slice(1)} ${this.name}</h2>
      ${gone ? html`<p class="unknown">${gone}${this.state.access ? "" : html` This user may not see it: <code>${ACCESS}</code> is missing.`}</p>` : null}${it && draw ? draw() : null}`;
  }

  /** @param {any} access @param {any} user @param {string} gone */
  user(access, user, gone) {
    const { name, roles, blocked } = user;
    const own = access.tokens.filter((/** @type {any} */ each) => each.user === name);
    const made = (/** @type {any} */ token) => html`<${Copied} label="token" text=${token.text} />`;
    return html`<dl><dt>roles</dt><dd>${roles.join(", ") || "none"}</dd><dt>blocked</dt><dd>${blocked ? html`<b class="invalid">yes</b>` : "no"}</dd></dl>
      ${own.length ? this.tokens(own) : html`<p class="faint">The user has no token.</p>`}
      <div class="actions" key="actions-3">
        <${Action} ...${this.common((/** @type {any} */ values) => ({ action: "set_user", name, roles: values.roles, blocked: values.blocked, condition: "exists" }),
            (values) => `user set ${quoted(name)}${withRoles(values.roles)}${values.blocked ? " --blocked" : ""}`, gone)}
          name="Change the roles" about="Requests count by the new roles at once, also those under way." fields=${[roleField(access, roles), { name: "blocked", label: "blocked: it may do nothing", kind: "check", value: blocked }]} />
        <${Action} ...${this.common((/** @type {any} */ { label, days }, /** @type {any} */ token) => ({ action: "add_token", name, token: token?.id || "ID", token_hash: token?.hash || "SHA-256 OF THE TOKEN", ...(label && { label }),
              ...(days && { expires_ms: Date.now() + Number(days) * DAY_MS }) }),
            ({ label, days }) => `token create ${quoted(name)}${days ? ` --days ${days}` : ""}${label ? ` --label ${quoted(label)}` : ""}`,
            gone || (globalThis.crypto.subtle ? "" : html`A browser makes tokens only with TLS or on loopback: <code>raftlog token create ${quoted(name)}</code>`))}
          name="Create a token" about="This page makes it, and shows it once. The cluster keeps its hash alone." prepare=${makeToken}
          fields=${[{ name: "label", label: "What it is for", optional: true }, { name: "days", label: "Days until it ends", kind: "number", optional: true, hint: "never" }]}
          done=${(/** @type {any} */ _, /** @type {any} */ __, /** @type {any} */ token) => html`Token ${token.id} of ${name}. It is shown this once: ${made(token)}
            ${location.protocol === "https:" ? "Where the nodes require certificates its user needs one too: raftlog cert client." : ""}`}
          unknown=${(/** @type {any} */ _, /** @type {any} */ token) => (token ? html`If the table has token ${token.id}, it counts. It is shown this once: ${made(token)}` : "")} />
        <${Action} ...${this.common(() => ({ action: "delete_user", name }), () => `user delete ${quoted(name)}`, gone)} danger name="Delete the user"
          effect=${async () => ({ words: html`User <b>${name}</b> goes, with ${own.length === 1 ? "1 token" : `${number(own.length)} tokens`} and its sessions.` })} /></div>`;
  }

  /** @param {any} access @param {any} role @param {string} gone */
  role(access, role, gone) {
    const { name, grants, built_in } = role;
    const blocked = gone || (built_in ? "The role is built in: it never changes." : "");
    const change = (/** @type {string} */ action, /** @type {string} */ verb) => this.common((/** @type {any} */ values) => ({ action, name, grants: [values.grants].flat().flatMap(lines) }),
      (values) => `role ${verb} ${quoted(name)} ${[values.grants].flat().flatMap(lines).map(quoted).join(" ")}`, blocked);
    const users = access.users.filter((/** @type {any} */ each) => each.roles.includes(name)).map((/** @type {any} */ each) => html`${link("user", each.name)} `);
    return html`<dl><dt>grants</dt><dd>${grants.map((/** @type {string} */ each) => html`<code>${each}</code> `)}</dd><dt>users</dt><dd>${users.length ? users : "none"}</dd></dl>
      <div class="actions" key="actions-4">
        <${Action} ...${change("grant_role", "grant")} name="Give grants" about="The role keeps those that it has." fields=${[{ name: "grants", label: "Grants, one a line", kind: "lines", hint: "write on keys:bills/*" }]} />
        <${Action} ...${change("ungrant_role", "ungrant")} name="Take a grant" about="It counts at once, also for requests under way." fields=${[{ name: "grants", label: "Grant", kind: "choice", choices: grants.map((/** @type {string} */ each) => [each, each]) }]} />
        <${Action} ...${this.common(() => ({ action: "delete_role", name }), () => `role delete ${quoted(name)}`, blocked)} danger name="Delete the role" about="It is refused while a user has it." /></div>`;
  }

  /** @param {any} token @param {string} gone */
  token(token, gone) {
    return html`${this.tokens([token])}<div class="actions" key="actions-5"><${Action} ...${this.common(() => ({ action: "delete_token", token: token.id }), () => `token revoke ${token.id}`, gone)}
      danger name="Revoke the token" about="Requests under way that it admitted are refused as well, and logins by it end." /></div>`;
  }
}

/** How to switch access control on. @param {{users: number}} props */
function Off({ users }) {
  return html`<h2>Access control is off</h2><p>Every client that reaches a node may do everything, and is not named. This switches it on; after it every request names its user:</p>
    ${users ? html`<${Copied} text=${`raftlog -e ${location.origin} access enable`} /><p class="faint">The cluster has ${number(users)} users from before.</p>`
      : location.protocol === "https:" ? html`<${Copied} text="raftlog access init NAME --config node.toml" /><p class="faint">On the machine of a node: its certificate proves that you may.</p>`
        : html`<${Copied} text=${`raftlog -e ${location.origin} access init NAME --out NAME.token\nexport RAFTLOG_TOKEN_FILE=$PWD/NAME.token`} />
          <p class="faint">NAME is the first admin. Its token is in the file, and logs in here.</p>`}`;
}

/** @param {string} label @param {string[]} heads @param {any[][]} rows */
function table(label, heads, rows) {
  return html`<div class="wide" tabindex="0" role="region" aria-label=${label}><table><thead><tr>${heads.map((each) => html`<th>${each}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((each) => html`<td>${each}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** @param {any} access @param {string[]} value @returns {import("./action.js").Field} */
function roleField({ roles }, value) {
  return { name: "roles", label: "Roles", kind: "many", value, choices: roles.map((/** @type {any} */ each) => [each.name, each.name]) };
}

/** @param {string[]} roles */
function withRoles(roles) {
  return roles.map((each) => ` --role ${quoted(each)}`).join("");
}

/** A new token, as `raftlog token create` makes it (cluster/security/tokens.py): its id, text, and the hash in hex. */
async function makeToken() {
  const bytes = crypto.getRandomValues(new Uint8Array(36));
  const id = hex(bytes.slice(0, 4));
  const secret = bytes.slice(4);
  let crc = -1;
  for (const byte of [...new TextEncoder().encode(id), ...secret]) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  const check = [24, 16, 8, 0].map((shift) => (~crc >>> shift) & 255);
  const text = `rl_${id}_${btoa(String.fromCharCode(...secret, ...check)).replaceAll("+", "-").replaceAll("/", "_")}`;
  return { id, text, hash: hex(new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)))) };
}

/** @param {Uint8Array} bytes */
function hex(bytes) {
  return [...bytes].map((each) => each.toString(16).padStart(2, "0")).join("");
}
