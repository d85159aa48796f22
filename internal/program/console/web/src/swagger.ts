// The explorer: Swagger UI over the server's OpenAPI documents, signed in as the console is.

import './swagger.css';
import { currentToken, get, reasonOf, Refused } from './api';
import { joined, type Document_, named, ownOf } from './documents';
import { byToken, config, type Config, resume, type Session } from './session';

interface Request_ {
  url: string;
  headers: Record<string, string>;
}
// An operation as Swagger UI keeps it, in maps of Immutable.
interface Map_ {
  get(name: string): any;
  update(name: string, change: (value: any) => any): Map_;
  map(change: (value: Map_) => Map_): Map_;
  filter(keep: (value: Map_) => boolean): Map_;
}
interface Explorer {
  getSystem(): { layoutActions: { updateFilter(words: string): void } };
}
declare const SwaggerUIBundle: ((options: object) => Explorer) | undefined;

const bar = document.getElementById('bar')!;
const notice = document.getElementById('notice')!;

function element<K extends keyof HTMLElementTagNameMap>(name: K, properties: Partial<HTMLElementTagNameMap[K]> = {}, ...children: (Node | string)[]): HTMLElementTagNameMap[K] {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function fail(error: unknown): void {
  notice.replaceChildren(element('p', { role: 'alert' }, reasonOf(error)));
}

// load loads Swagger UI, which takes most of the page's size, when there is something to show.
function load(): Promise<void> {
  if (typeof SwaggerUIBundle !== 'undefined') return Promise.resolve();
  return new Promise((resolve, reject) => {
    const script = element('script', { src: document.body.dataset['explorer']! });
    script.addEventListener('load', () => resolve());
    script.addEventListener('error', () => reject(new Error('the explorer cannot be loaded: reload the page')));
    document.head.append(script);
  });
}

// signIn offers the ways to sign in, in the place of the documents.
function signIn(c: Config): void {
  // A session that begins at the console, in this tab or another, is this page's as well.
  const look = () => {
    if (document.visibilityState === 'visible') void resume(c).then((s) => s && location.reload(), () => {});
  };
  addEventListener('pageshow', look);
  addEventListener('focus', look);
  const text = element('p', {}, 'The documents of the API are for users that are signed in. ');
  if (c.console) text.append(element('a', { href: c.console }, 'Sign in at the console'), ', and come back, or use a token here.');
  const token = element('input', { type: 'password', autocomplete: 'off', required: true });
  const form = element('form', {}, element('label', {}, 'Token ', token), element('button', {}, 'Sign in with the token'));
  const problem = element('p', {});
  problem.setAttribute('role', 'alert');
  form.addEventListener('submit', (e) => {
    e.preventDefault();
    byToken(token.value.trim(), true).then(
      () => location.reload(),
      (error: unknown) => (problem.textContent = reasonOf(error)),
    );
  });
  notice.replaceChildren(text, form, problem);
}

const own = 'own';

async function start(): Promise<void> {
  const c = await config();
  document.title = `${c.title}: API`;
  bar.append(c.console ? element('a', { href: c.console }, c.title) : element('strong', {}, c.title), element('span', { className: 'version' }, c.version));
  const session = await resume(c);
  let paths: Record<string, { serverRelativeURL: string }>;
  try {
    ({ paths } = await get<{ paths: typeof paths }>('/openapi/v3'));
  } catch (error) {
    if (session || !(error instanceof Refused) || (error.code !== 401 && error.code !== 403)) throw error;
    return signIn(c);
  }
  await show(c, session, paths);
}

async function show(c: Config, session: Session | undefined, paths: Record<string, { serverRelativeURL: string }>): Promise<void> {
  // What the server is for comes first, then what all servers have, and what is no version of a group.
  const rank = (name: string) => (name.split('/').length < 3 && name !== 'api/v1' ? 3 : name.includes('.k8s.io/') ? 2 : name === 'api/v1' ? 1 : 0);
  const names = Object.keys(paths).sort((a, b) => rank(a) - rank(b) || a.localeCompare(b));
  const select = element('select');
  const ours = ownOf(names);
  if (ours.length > 0) select.append(new Option(`all kinds of ${c.title}`, own));
  const single = element('optgroup', { label: 'one document' });
  for (const name of names) single.append(new Option(name, name));
  select.append(single);
  const search = element('input', { type: 'search', placeholder: 'such as create pizza' });
  bar.append(element('label', { className: 'rest' }, 'Search ', search), element('label', {}, 'API ', select));
  const raw = element('a', {}, 'JSON');
  bar.append(raw);
  if (session) bar.append(element('span', {}, session.user.username));

  let explorer: Explorer | undefined;
  const render = async () => {
    history.replaceState(null, '', '#' + encodeURIComponent(select.value));
    raw.hidden = select.value === own;
    if (select.value !== own) raw.href = paths[select.value]!.serverRelativeURL;
    const read = (name: string) => get<Document_>(paths[name]!.serverRelativeURL);
    const [document_] = await Promise.all([
      select.value === own ? Promise.all(ours.map(read)).then((all) => joined(all, c.title, c.version)) : read(select.value).then((d) => named(d, `${c.title}: ${select.value}`, c.version)),
      load(),
    ]);
    notice.replaceChildren();
    explorer = SwaggerUIBundle!({
      spec: document_,
      dom_id: '#swagger',
      deepLinking: false,
      validatorUrl: null,
      // With few kinds, their operations are seen at once.
      docExpansion: select.value === own && (document_.tags?.length ?? 0) <= 4 ? 'list' : 'none',
      defaultModelsExpandDepth: 0,
      persistAuthorization: false,
      tryItOutEnabled: true,
      requestSnippetsEnabled: true,
      displayRequestDuration: true,
      // Commands to copy are without the token of the session.
      showMutatedRequest: false,
      plugins: [{ fn: { opsFilter: found }, wrapComponents: { FilterContainer: () => () => null } }],
      requestInterceptor: (r: Request_) => {
        // The token goes to this server only, whatever a document names. Another one may be set by Authorize.
        if (currentToken() && !r.headers['Authorization'] && new URL(r.url, location.href).origin === location.origin) r.headers['Authorization'] = 'Bearer ' + currentToken();
        return r;
      },
    });
    if (search.value) explorer.getSystem().layoutActions.updateFilter(search.value);
  };
  search.addEventListener('input', () => explorer?.getSystem().layoutActions.updateFilter(search.value));
  addEventListener('keydown', (e) => {
    if (e.key !== '/' || e.ctrlKey || e.metaKey || (e.target as HTMLElement).matches('input, textarea, select')) return;
    e.preventDefault();
    search.focus();
  });
  const asked = decodeURIComponent(location.hash.slice(1));
  if (paths[asked]) select.value = asked;
  const change = () => void render().catch(fail);
  select.addEventListener('change', change);
  await render();
}

// found keeps the operations that have each of the words in their path, method, text or kind.
function found(tagged: Map_, phrase: string): Map_ {
  const words = phrase.toLowerCase().split(/\s+/).filter(Boolean);
  const has = (o: Map_, tag: string) => {
    const operation = o.get('operation') as Map_;
    const text = [o.get('path'), o.get('method'), operation.get('summary'), operation.get('description'), tag].join(' ').toLowerCase();
    return words.every((w) => text.includes(w));
  };
  return tagged
    .map((t) => t.update('operations', (all: Map_) => all.filter((o) => has(o, String((o.get('operation') as Map_).get('tags') ?? '')))))
    .filter((t) => (t.get('operations') as { size: number }).size > 0);
}

// Swagger UI leaves the text of a request without a name, and answers that scroll out of reach of the keyboard.
new MutationObserver(() => {
  for (const answer of document.querySelectorAll<HTMLElement>('#swagger .microlight:not([tabindex])')) answer.tabIndex = 0;
  for (const area of document.querySelectorAll('#swagger textarea:not([aria-label])')) area.setAttribute('aria-label', 'request body');
}).observe(document.getElementById('swagger')!, { childList: true, subtree: true });

start().catch(fail);
