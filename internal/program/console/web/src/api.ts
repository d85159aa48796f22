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
  constructor(code: number, status: Status) {
    super(status.message || `the server answered ${code}`);
    this.code = code;
    this.status = status;
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

export function setToken(value: string, renewing?: () => Promise<boolean>): void {
  token = value;
  renew = renewing;
}
export function currentToken(): string {
  return token;
}

export interface Call {
  method?: string;
  accept?: string;
  body?: unknown;
  contentType?: string;
  signal?: AbortSignal;
  headers?: Record<string, string>;
  anonymous?: boolean; // without the token, and without another one if it is refused
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

// request answers a success, after renewing a token that has expired; others are thrown as Refused.
export async function request(path: string, call: Call = {}): Promise<Response> {
  let response = await send(path, call);
  if (response.status === 401 && renew && !call.anonymous && (await renew())) response = await send(path, call);
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

// events yields what a watch says, until it ends or the signal does.
export async function* events<T>(path: string, accept: string, signal: AbortSignal): AsyncGenerator<Event<T>> {
  const response = await request(path, { accept, signal });
  for await (const line of lines(response)) if (line) yield JSON.parse(line) as Event<T>;
}

// pause waits, unless the signal ends it.
export function pause(milliseconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
  });
}

// follow keeps a list and its watch: from is called first and whenever the history is gone, and says
// where to watch from; what ends is begun again, after a pause that grows while it fails.
export async function follow<T>(
  signal: AbortSignal,
  from: () => Promise<string>,
  path: (resourceVersion: string) => string,
  accept: string,
  each: (event: Event<T>, resourceVersion: string) => void,
  failed: (error: unknown) => void,
): Promise<void> {
  let version = '';
  let wait = 500;
  while (!signal.aborted) {
    try {
      if (!version) version = await from();
      for await (const event of events<T>(path(version), accept, signal)) {
        if (event.type === 'ERROR') {
          const status = event.object as Status;
          throw new Refused(status.code ?? 500, status);
        }
        wait = 500;
        const at = versionOf(event.object);
        if (at) version = at;
        each(event, version);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && (error.code === 410 || error.code === 400 || error.status.reason === 'Expired')) version = '';
      if (error instanceof Refused && [401, 403, 404, 405].includes(error.code)) {
        failed(error);
        return;
      }
      if (!(error instanceof Refused && error.code === 410)) failed(error);
      wait = Math.min(wait * 2, 15_000);
    }
    await pause(wait, signal);
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
