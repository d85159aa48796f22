// What the page asks of the server: requests with the caller's token, errors as the Status that
// the server answers, and watches as they come.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Obj = { [key: string]: Json };

export interface Meta {
  name: string;
  namespace?: string;
  uid?: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  ownerReferences?: Owner[];
  managedFields?: ManagedFields[];
}
export interface Owner {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
}
export interface ManagedFields {
  manager: string;
  operation: string;
  time?: string;
  subresource?: string;
  fieldsV1?: Obj;
}
export interface Resource {
  apiVersion: string;
  kind: string;
  metadata: Meta;
  [key: string]: unknown;
}

export interface Cause {
  reason?: string;
  message?: string;
  field?: string;
}
export interface Status {
  kind?: string;
  status?: string;
  message?: string;
  reason?: string;
  code?: number;
  details?: { name?: string; kind?: string; causes?: Cause[] };
}

// Refused is an answer that is no success. It carries the server's Status.
export class Refused extends Error {
  readonly code: number;
  readonly status: Status;
  readonly midway: boolean; // the end of a stream, and not an answer to a request
  constructor(code: number, status: Status, midway = false) {
    super(status.message || `the server answered ${code}`);
    this.code = code;
    this.status = status;
    this.midway = midway;
  }
  get causes(): Cause[] {
    return this.status.details?.causes ?? [];
  }
  get isConflictOfManagers(): boolean {
    return this.code === 409 && this.causes.some((c) => c.reason === 'FieldManagerConflict');
  }
}

export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

// The token lives in this module, and where the user wants it kept, in the session's storage.
let token = '';
let renew: (() => Promise<boolean>) | undefined;
let renewing: Promise<boolean> | undefined;

export function setToken(value: string, renewal?: () => Promise<boolean>): void {
  token = value;
  renew = renewal;
}
export function currentToken(): string {
  return token;
}

// signInAgain shows the sign-in over the page, and answers whether the same user has signed in. Requests wait for it.
let signInAgain: (() => Promise<boolean>) | undefined;

export function whenEnded(again: (() => Promise<boolean>) | undefined): void {
  signInAgain = again;
}

// accepted answers whether a request that was refused with 401 is worth sending again: with a token that another request
// has renewed, with a new one of the session, or with one of a new sign-in.
async function accepted(refused: string, attempt: number, call: Call): Promise<boolean> {
  if (token !== refused && attempt === 0) return true;
  if (renew && attempt === 0) {
    renewing ??= renew().finally(() => (renewing = undefined));
    if (await renewing) return true;
  }
  if (!signInAgain || call.probe) return false;
  const again = signInAgain();
  if (!call.signal) return again;
  const { signal } = call;
  return Promise.race([again, new Promise<boolean>((_, reject) => signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true }))]);
}

export interface Call {
  method?: string;
  accept?: string;
  body?: unknown;
  contentType?: string;
  signal?: AbortSignal;
  headers?: Record<string, string>;
  anonymous?: boolean; // without the token, and without another one if it is refused
  probe?: boolean; // asks who the caller is: a refusal is an answer
}

async function send(path: string, call: Call): Promise<Response> {
  const headers: Record<string, string> = { Accept: call.accept ?? 'application/json', ...call.headers };
  if (token && !call.anonymous) headers['Authorization'] = 'Bearer ' + token;
  const init: RequestInit = { method: call.method ?? 'GET', headers, credentials: 'same-origin', cache: 'no-store', redirect: 'error' };
  if (call.body !== undefined) {
    headers['Content-Type'] = call.contentType ?? 'application/json';
    init.body = typeof call.body === 'string' ? call.body : JSON.stringify(call.body);
  }
  if (call.signal) init.signal = call.signal;
  return fetch(path, init);
}

// request answers a success, after renewing a token that has expired, or after another sign-in where the session has ended.
// Other answers are thrown as Refused.
export async function request(path: string, call: Call = {}): Promise<Response> {
  let used = token;
  let response = await send(path, call);
  for (let attempt = 0; response.status === 401 && !call.anonymous && (await accepted(used, attempt, call)); attempt++) {
    void response.body?.cancel();
    used = token;
    response = await send(path, call);
  }
  if (response.ok) return response;
  const text = await response.text();
  let status: Status = { message: text.slice(0, 500) || response.statusText };
  try {
    const parsed = JSON.parse(text) as Status & { error?: string; error_description?: string };
    if (parsed.kind === 'Status' || parsed.message) status = parsed;
    // Of RFC 6749.
    else if (parsed.error) status = { reason: parsed.error, message: parsed.error_description ?? parsed.error };
  } catch {
    // Not all that refuses speaks JSON.
  }
  throw new Refused(response.status, status);
}

export async function get<T>(path: string, call: Call = {}): Promise<T> {
  return (await (await request(path, call)).json()) as T;
}
export async function post<T>(path: string, body: unknown, call: Call = {}): Promise<T> {
  return (await (await request(path, { ...call, method: 'POST', body })).json()) as T;
}

export function query(parameters: Record<string, string | number | boolean | undefined>): string {
  const q = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value !== undefined && value !== '') q.append(name, String(value));
  const text = q.toString();
  return text && '?' + text;
}

// lines yields the lines of a stream as they come, in parts those that are longer than they may be.
export async function* lines(response: Response, longest = Infinity): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      rest += value;
      const all = rest.split('\n');
      rest = all.pop() ?? '';
      yield* all;
      if (rest.length > longest) {
        yield rest;
        rest = '';
      }
    }
    if (rest) yield rest;
  } finally {
    void reader.cancel().catch(() => {});
  }
}

export interface Event<T> {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR';
  object: T;
}

// silence is longer than the server leaves a watch with bookmarks without one.
const silence = 150_000;

// alive yields what a stream yields, and fails if it is silent for too long: a network may be gone without a word.
async function* alive<T>(stream: AsyncGenerator<T>, longest: number): AsyncGenerator<T> {
  try {
    for (;;) {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const silent = new Promise<never>((_, reject) => (timer = setTimeout(() => reject(new Error('the server has been silent for too long')), longest)));
      const next = await Promise.race([stream.next(), silent]).finally(() => clearTimeout(timer));
      if (next.done) return;
      yield next.value;
    }
  } finally {
    // Not awaited: a read that never ends would hold it.
    void stream.return(undefined).catch(() => {});
  }
}

// streamed yields the lines of a stream, until it ends or the signal does. connected is called when the server has begun to
// answer, which may be long before the first line. A stream that beats sends something at least every two minutes.
export async function* streamed(path: string, accept: string, signal: AbortSignal, beats: boolean, connected?: () => void): AsyncGenerator<string> {
  const ending = new AbortController();
  const end = () => ending.abort(signal.reason);
  if (signal.aborted) end();
  signal.addEventListener('abort', end, { once: true });
  try {
    const response = await request(path, { accept, signal: ending.signal });
    connected?.();
    const all = lines(response);
    yield* beats ? alive(all, silence) : all;
  } finally {
    signal.removeEventListener('abort', end);
    ending.abort();
  }
}

// events yields what a watch sends, as streamed does.
export async function* events<T>(path: string, accept: string, signal: AbortSignal, connected?: () => void): AsyncGenerator<Event<T>> {
  for await (const line of streamed(path, accept, signal, path.includes('allowWatchBookmarks'), connected)) if (line) yield JSON.parse(line) as Event<T>;
}

// pause waits, unless the signal ends it.
export function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });
}

// untilOnline waits like pause, and no longer than until the network is there again.
export function untilOnline(milliseconds: number, signal: AbortSignal): Promise<void> {
  const ending = new AbortController();
  const end = () => ending.abort();
  signal.addEventListener('abort', end, { once: true });
  addEventListener('online', end, { once: true });
  return pause(milliseconds, ending.signal).finally(() => {
    signal.removeEventListener('abort', end);
    removeEventListener('online', end);
  });
}

// follow keeps a list and its watch: from is called first and whenever the history is gone, and gives the version to watch
// from; a watch that ends is begun again, after a pause that grows while it fails. connected is called each time that the
// server answers the watch. A watch whose caller has to sign in again waits for that; one that may not be watched any more
// ends.
export async function follow<T>(
  signal: AbortSignal,
  from: () => Promise<string>,
  path: (resourceVersion: string) => string,
  accept: string,
  each: (event: Event<T>, resourceVersion: string) => void,
  failed: (error: unknown) => void,
  connected: () => void = () => {},
): Promise<void> {
  let version = '';
  let wait = 500;
  while (!signal.aborted) {
    try {
      if (!version) version = await from();
      const begun = () => {
        wait = 500;
        connected();
      };
      for await (const event of events<T>(path(version), accept, signal, begun)) {
        if (event.type === 'ERROR') {
          const status = event.object as Status;
          throw new Refused(status.code ?? 500, status, true);
        }
        const at = versionOf(event.object);
        if (at) version = at;
        each(event, version);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && (error.code === 410 || error.code === 400 || error.status.reason === 'Expired')) version = '';
      // The next request finds out whether the session gives another token.
      if (error instanceof Refused && error.code === 401 && error.midway) continue;
      if (error instanceof Refused && [401, 403, 404, 405].includes(error.code)) {
        failed(error);
        return;
      }
      if (!(error instanceof Refused && error.code === 410)) failed(error);
      wait = Math.min(wait * 2, 15_000);
    }
    await untilOnline(wait, signal);
  }
}

function versionOf(object: unknown): string {
  const o = object as { metadata?: { resourceVersion?: string }; rows?: { object?: { metadata?: { resourceVersion?: string } } }[] };
  return o.rows?.at(-1)?.object?.metadata?.resourceVersion || o.metadata?.resourceVersion || '';
}

export function isObjectWithMetadata(value: unknown): value is Resource {
  const v = value as Resource | null;
  return typeof v === 'object' && v !== null && typeof v.kind === 'string' && typeof v.apiVersion === 'string' && typeof v.metadata === 'object' && v.metadata !== null;
}
