// The client that the generated modules have in common. It needs fetch, and nothing else.

/** An object as all kinds have it. */
export interface AnyObject {
  apiVersion?: string;
  kind?: string;
  metadata: { name?: string; namespace?: string; uid?: string; resourceVersion?: string };
}

/** The metadata that the server sets when it stores an object. */
export interface StoredMeta {
  name: string;
  uid: string;
  resourceVersion: string;
}

export type IntOrString = number | string;
/** A quantity such as "500m" or "1Gi". Servers answer strings. */
export type Quantity = string | number;
/** A time such as "2026-01-02T15:04:05Z". */
export type Time = string;

/** The types of one kind in one version. */
export interface Kind {
  /** An object as the server answers it. */
  object: AnyObject;
  /** An object as clients write it: fields with defaults are optional. */
  input: { metadata: AnyObject['metadata'] };
  /** The fields of queries with the types of their values. */
  fields: object;
  /** The fields by which queries sort. */
  sortable: string;
}

// ---------------------------------------------------------------- errors

export type Reason =
  | 'BadRequest'
  | 'Unauthorized'
  | 'Forbidden'
  | 'NotFound'
  | 'MethodNotAllowed'
  | 'NotAcceptable'
  | 'AlreadyExists'
  | 'Conflict'
  | 'Gone'
  | 'Expired'
  | 'Invalid'
  | 'RequestEntityTooLarge'
  | 'UnsupportedMediaType'
  | 'TooManyRequests'
  | 'InternalError'
  | 'ServiceUnavailable'
  | 'ServerTimeout'
  | 'Timeout'
  | ''
  | (string & {});

/** One cause of a refusal, such as a field that is invalid. */
export interface Cause {
  reason?: string;
  message?: string;
  /** The path of the field, such as spec.toppings[0].name. */
  field?: string;
}

export interface Status {
  kind?: string;
  status?: string;
  message?: string;
  reason?: string;
  code?: number;
  details?: { name?: string; group?: string; kind?: string; uid?: string; causes?: Cause[]; retryAfterSeconds?: number };
}

/** An answer that is no success. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  /** The code of HTTP. */
  readonly code: number;
  readonly reason: Reason;
  readonly causes: readonly Cause[];
  readonly status: Status;

  constructor(code: number, status: Status) {
    super(status.message || `the server answered ${code}`);
    this.code = code;
    this.status = status;
    this.reason = status.reason ?? '';
    this.causes = status.details?.causes ?? [];
  }

  get isNotFound(): boolean {
    return this.code === 404;
  }
  get isUnauthorized(): boolean {
    return this.code === 401;
  }
  get isForbidden(): boolean {
    return this.code === 403;
  }
  get isAlreadyExists(): boolean {
    return this.reason === 'AlreadyExists';
  }
  /** Another client has changed the object since it was read, or manages a field of an apply. */
  get isConflict(): boolean {
    return this.code === 409 && this.reason !== 'AlreadyExists';
  }
  /** Other managers own fields of an apply; causes has the fields. */
  get isConflictOfManagers(): boolean {
    return this.code === 409 && this.causes.some((c) => c.reason === 'FieldManagerConflict');
  }
  get isInvalid(): boolean {
    return this.reason === 'Invalid';
  }
  /** The history does not reach back to a resource version or cursor: begin anew. */
  get isExpired(): boolean {
    return this.code === 410;
  }
  /** The seconds after which the server expects the request again; undefined if it names none. */
  get retryAfterSeconds(): number | undefined {
    return this.status.details?.retryAfterSeconds;
  }
}

// ---------------------------------------------------------------- client

export interface ClientOptions {
  /** The URL of the server, such as https://api.example.com. A page of the server itself needs none. */
  server?: string;
  /** A bearer token, or a function that returns the present one before each request. */
  token?: string | (() => string | undefined | Promise<string | undefined>);
  /** Called when the server answers 401. If it resolves to true, the request is sent once more. */
  renew?: () => boolean | Promise<boolean>;
  /** The name under which writes are recorded in managed fields. Apply needs one. */
  fieldManager?: string;
  /** Whether browsers send cookies and certificates; same-origin by default. */
  credentials?: RequestCredentials;
  headers?: Record<string, string>;
  /** A replacement of the global fetch. */
  fetch?: typeof fetch;
  /** The prefix of the query API, if the operator has moved it. */
  queryPrefix?: string;
  /** The pauses before a watch connects again, in milliseconds: 500 first, doubled up to 30000 by default. */
  reconnect?: { first?: number; longest?: number };
}

export interface RequestOptions {
  signal?: AbortSignal | undefined;
}

export interface Call extends RequestOptions {
  method?: string;
  query?: string;
  body?: unknown;
  contentType?: string;
  accept?: string;
  headers?: Record<string, string>;
}

/** How often a request is sent again that the server has put off (429). */
const mostRetries = 5;

export class Client {
  readonly options: Readonly<ClientOptions>;
  readonly #server: string;

  constructor(options: ClientOptions = {}) {
    this.options = options;
    this.#server = (options.server ?? '').replace(/\/+$/, '');
  }

  /** Sends a request. It resolves to a success, and rejects with an ApiError otherwise. */
  async request(path: string, call: Call = {}): Promise<Response> {
    let renewed = false;
    for (let tries = 0; ; tries++) {
      const response = await this.#send(path, call);
      if (response.ok || response.status === 304) return response;
      const error = await errorOf(response);
      if (response.status === 401 && !renewed && this.options.renew && (await this.options.renew())) {
        renewed = true;
        continue;
      }
      // A request that was put off has had no effect, whatever its method.
      const after = Number(response.headers.get('Retry-After') ?? NaN);
      if (response.status !== 429 || !(after >= 0) || tries >= mostRetries) throw error;
      await pause(Math.max(after * 1000, 100), call.signal);
      call.signal?.throwIfAborted();
    }
  }

  /** Sends a request, and resolves to the JSON of its answer. */
  async json<T>(path: string, call: Call = {}): Promise<T> {
    return (await (await this.request(path, call)).json()) as T;
  }

  async #send(path: string, call: Call): Promise<Response> {
    const { options } = this;
    const headers: Record<string, string> = { Accept: call.accept ?? 'application/json', ...options.headers, ...call.headers };
    const token = typeof options.token === 'function' ? await options.token() : options.token;
    if (token) headers['Authorization'] = `Bearer ${token}`;
    const init: RequestInit = { method: call.method ?? 'GET', headers, redirect: 'error', credentials: options.credentials ?? 'same-origin' };
    if (call.body !== undefined) {
      headers['Content-Type'] = call.contentType ?? 'application/json';
      init.body = JSON.stringify(call.body);
    }
    if (call.signal) init.signal = call.signal;
    return (options.fetch ?? fetch)(this.#server + path + (call.query ?? ''), init);
  }
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text().catch(() => '');
  let status: Status = { message: text.slice(0, 500) || response.statusText };
  try {
    const parsed = JSON.parse(text) as Status | null;
    if (parsed && typeof parsed === 'object' && (parsed.kind === 'Status' || parsed.message)) status = parsed;
  } catch {
    // Proxies may answer with text that is not JSON.
  }
  return new ApiError(response.status, status);
}

/** Resolves after a time, or when the signal is aborted. */
function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, milliseconds);
    signal?.addEventListener('abort', done);
  });
}

// ---------------------------------------------------------------- options

/** A selector of labels: as text, or labels with their values. */
export type LabelSelector = string | Readonly<Record<string, string>>;

export interface Selection extends RequestOptions {
  labelSelector?: LabelSelector | undefined;
  fieldSelector?: string | undefined;
}

export interface ListOptions extends Selection {
  /** The largest number of objects in an answer. */
  limit?: number | undefined;
  /** Where to go on, from the answer before. */
  continue?: string | undefined;
}

export interface List<T> {
  items: T[];
  resourceVersion: string;
  /** Set if there is more: the option continue of the next list. */
  continue?: string;
  remaining?: number;
}

export interface WriteOptions extends RequestOptions {
  /** Do everything but store. */
  dryRun?: boolean | undefined;
  /** The name under which the write is recorded, instead of the client's. */
  fieldManager?: string | undefined;
  /** How the server treats fields that the kind does not have; Strict by default. */
  fieldValidation?: 'Strict' | 'Warn' | 'Ignore' | undefined;
}

export interface ApplyOptions extends WriteOptions {
  /** Take over the fields that other managers own. */
  force?: boolean | undefined;
}

export interface PatchOptions extends WriteOptions {
  /** A merge patch (RFC 7396) by default; a list of operations (RFC 6902) with json. */
  type?: 'merge' | 'json' | undefined;
  /** The write is refused with a conflict if the object has another version. For merge patches. */
  resourceVersion?: string | undefined;
}

export interface DeleteOptions extends RequestOptions {
  dryRun?: boolean | undefined;
  /** The deletion is refused with a conflict if the object has another version, or another uid. */
  resourceVersion?: string | undefined;
  uid?: string | undefined;
  gracePeriodSeconds?: number | undefined;
  propagationPolicy?: 'Foreground' | 'Background' | 'Orphan' | undefined;
}

/** A condition of a query on one field: a value, one of several, or comparisons that all hold. */
export type Condition<V> = V | readonly V[] | Comparisons<V>;
export type Comparisons<V> = { ne?: V | readonly V[]; gt?: V; gte?: V; lt?: V; lte?: V } & ([V] extends [string] ? { contains?: string | readonly string[] } : unknown);

export interface Filter<K extends Kind> extends Selection {
  /** Conditions on fields, all of which hold. */
  where?: { [F in keyof K['fields']]?: Condition<K['fields'][F]> | undefined } | undefined;
  /** A part of the name. */
  name?: string | undefined;
  /** Words, each of which is in the name or in a text field. */
  q?: string | undefined;
  /** The paths of the fields that items have beside their identity; all by default. */
  fields?: readonly string[] | undefined;
  showManagedFields?: boolean | undefined;
}

export interface QueryOptions<K extends Kind> extends Filter<K> {
  /** The number of the page, from 1. */
  page?: number | undefined;
  /** The number of items on a page, 50 by default; 0 only counts. */
  limit?: number | undefined;
  /** The page after the one that had this cursor. */
  cursor?: string | undefined;
  sortBy?: K['sortable'] | undefined;
  ascending?: boolean | undefined;
  /** The fields whose values are counted over all selected objects. */
  facets?: readonly (keyof K['fields'] & string)[] | undefined;
  /** The page that is known: if it has not changed, the answer is this very page. */
  known?: Page<K> | undefined;
}

export interface Facet {
  /** null counts the objects without a value. */
  value: string | null;
  count: number;
}

export interface Page<K extends Kind> {
  items: K['object'][];
  /** The number of objects on all pages. */
  totalItems: number;
  /** The revision that the page shows. A watch may go on from it. */
  resourceVersion: string;
  /** Set if there are more: the option cursor of the next page. */
  cursor?: string;
  facets?: { [F in keyof K['fields']]?: Facet[] };
  /** The entity tag of the page, with which it is asked for again. */
  etag?: string;
}

/** An event of a watch. */
export type Change<T> =
  | { type: 'ADDED' | 'MODIFIED' | 'DELETED'; object: T }
  /** The delivered objects are the present ones: at the begin, and after a lost connection is there again. */
  | { type: 'SYNCED'; resourceVersion: string }
  /** The connection is lost; the watch connects again after the pause, in milliseconds. */
  | { type: 'LOST'; error: unknown; retryIn: number };

export interface WatchOptions extends Selection {
  /** Deliver the changes after this version; without it, the present objects come first, as ADDED. */
  resourceVersion?: string | undefined;
}

export interface TailOptions<K extends Kind> extends Filter<K> {
  resourceVersion?: string | undefined;
}

// ---------------------------------------------------------------- methods

export interface Gets<K extends Kind> {
  get(name: string, options?: RequestOptions): Promise<K['object']>;
}
export interface Lists<K extends Kind> {
  /** One list; with limit, a part of it. */
  list(options?: ListOptions): Promise<List<K['object']>>;
  /** All objects, read in parts of limit objects (500 by default). */
  all(options?: ListOptions): AsyncGenerator<K['object'], void, undefined>;
}
export interface Watches<K extends Kind> {
  /**
   * The present objects and their changes, until the signal is aborted or the loop ends. It reconnects by itself, and
   * delivers the changes since. It rejects when the server refuses it: 400, 401, 403, 404, 405.
   */
  watch(options?: WatchOptions): AsyncGenerator<Change<K['object']>, void, undefined>;
  /** Waits until an object meets a condition, and resolves to it. A missing object is waited for. */
  until(name: string, condition: (object: K['object']) => boolean, options?: RequestOptions): Promise<K['object']>;
}
export interface Creates<K extends Kind> {
  create(object: K['input'], options?: WriteOptions): Promise<K['object']>;
}
export interface Updates<K extends Kind> {
  /** Replaces an object. It is a conflict if the object has changed since its resourceVersion was read. */
  update(object: K['input'], options?: WriteOptions): Promise<K['object']>;
}
/** A subresource that clients can read and replace. */
export interface Modifies<K extends Kind> {
  /** Reads an object, lets change modify it or return another, and replaces it; after a conflict all over again. */
  modify(name: string, change: (object: K['object']) => K['object'] | void, options?: WriteOptions): Promise<K['object']>;
}
export interface Patches<K extends Kind> {
  patch(name: string, patch: unknown, options?: PatchOptions): Promise<K['object']>;
  /** Server-side apply: creates the object, or changes the fields that are given and owned by the field manager. */
  apply(object: K['input'], options?: ApplyOptions): Promise<K['object']>;
}
export interface Deletes {
  delete(name: string, options?: DeleteOptions): Promise<void>;
}
export interface DeletesMany {
  /** Deletes all objects that are selected. */
  deleteMany(options: Selection & Pick<DeleteOptions, 'dryRun' | 'propagationPolicy'>): Promise<void>;
}
export interface Queries<K extends Kind> {
  /** A page: sorted, filtered and counted by the server. */
  query(options?: QueryOptions<K>): Promise<Page<K>>;
  /** All pages, by their cursors. */
  pages(options?: Omit<QueryOptions<K>, 'page' | 'cursor' | 'known'>): AsyncGenerator<Page<K>, void, undefined>;
}
export interface Tails<K extends Kind> {
  /** As watch, of the objects that a query selects. */
  tail(options?: TailOptions<K>): AsyncGenerator<Change<K['object']>, void, undefined>;
}
/** A subresource with objects, such as status or scale. */
export type Part<K extends Kind, M extends keyof Resource<K>> = Pick<Resource<K>, M>;

/** The objects of all namespaces, and those of one. */
export type Namespaced<Everywhere, Inside> = Everywhere & { in(namespace: string): Inside };

export interface ActionOptions extends RequestOptions {
  dryRun?: boolean | undefined;
}
export interface LongActionOptions extends ActionOptions {
  /** How long the request waits for the end of the operation, such as 30s. */
  wait?: string | undefined;
}
/** An action of an object. */
export type Action<Request, Answer, Options = ActionOptions> = (name: string, request: Request, options?: Options) => Promise<Answer>;
/** A view of an object, which is read. */
export type View<Parameters_, Answer> = (name: string, parameters?: Parameters_, options?: RequestOptions) => Promise<Answer>;
/** A stream of text, by its lines, such as a log. */
export type Stream<Parameters_> = (name: string, parameters?: Parameters_, options?: RequestOptions) => AsyncGenerator<string, void, undefined>;

/** The facts of a resource. */
export interface Facts {
  group: string;
  version: string;
  resource: string;
  kind: string;
  namespaced: boolean;
  /** The prefix of the query API; empty if it does not serve the resource. */
  queries: string;
  /** Custom subresources, and how they are used. */
  parts?: Readonly<Record<string, 'part' | 'action' | 'view' | 'stream'>>;
}

/** How long a watch may be silent before it is taken for lost, in milliseconds. */
const silence = { watch: 330_000, tail: 45_000 };

/** The objects of a resource, or a subresource of them. */
export class Resource<K extends Kind> {
  readonly facts: Facts;
  readonly #client: Client;
  readonly #namespace: string | undefined;
  readonly #part: string;

  constructor(client: Client, facts: Facts, namespace?: string, part = '') {
    this.facts = facts;
    this.#client = client;
    this.#namespace = namespace;
    this.#part = part;
    const actions: Record<string, unknown> = {};
    const views: Record<string, unknown> = {};
    const streams: Record<string, unknown> = {};
    if (!part && (namespace !== undefined || !facts.namespaced)) {
      for (const [name, use] of Object.entries(facts.parts ?? {})) {
        const property = propertyOf(name);
        if (use === 'part') Object.assign(this, { [property]: new Resource<K>(client, facts, namespace, name) });
        if (use === 'action') actions[property] = (of: string, request: unknown, options?: LongActionOptions) => this.#act(of, name, request, options);
        if (use === 'view') views[property] = (of: string, parameters?: Parameters_, options?: RequestOptions) => this.#view(of, name, parameters, options);
        if (use === 'stream') streams[property] = (of: string, parameters?: Parameters_, options?: RequestOptions) => this.#stream(of, name, parameters, options);
      }
    }
    Object.assign(this, { actions, views, streams });
  }

  /** The objects of one namespace. */
  in(namespace: string): Resource<K> {
    if (!this.facts.namespaced) throw new TypeError(`${this.facts.resource} are in no namespace`);
    if (!namespace) throw new TypeError('a namespace has a name');
    return new Resource<K>(this.#client, this.facts, namespace);
  }

  async get(name: string, options: RequestOptions = {}): Promise<K['object']> {
    return this.#client.json<K['object']>(this.#path(name), { signal: options.signal });
  }

  async list(options: ListOptions = {}): Promise<List<K['object']>> {
    const { limit, continue: from } = options;
    type Answer = { items?: K['object'][] | null; metadata: { resourceVersion?: string; continue?: string; remainingItemCount?: number } };
    const answer = await this.#client.json<Answer>(this.#path(), { query: queryOf({ ...selectionOf(options), limit, continue: from }), signal: options.signal });
    const { apiVersion, kind } = this.#type();
    const list: List<K['object']> = {
      // Items of lists have no type of their own.
      items: (answer.items ?? []).map((item) => ({ apiVersion, kind, ...item })),
      resourceVersion: answer.metadata.resourceVersion ?? '',
    };
    if (answer.metadata.continue) list.continue = answer.metadata.continue;
    if (answer.metadata.remainingItemCount !== undefined) list.remaining = answer.metadata.remainingItemCount;
    return list;
  }

  async *all(options: ListOptions = {}): AsyncGenerator<K['object'], void, undefined> {
    let from = options.continue;
    do {
      const list: List<K['object']> = await this.list({ ...options, limit: options.limit ?? 500, continue: from });
      yield* list.items;
      from = list.continue;
    } while (from);
  }

  async create(object: K['input'], options: WriteOptions = {}): Promise<K['object']> {
    return this.#write('POST', this.#path(), object, options);
  }

  async update(object: K['input'], options: WriteOptions = {}): Promise<K['object']> {
    return this.#write('PUT', this.#path(nameOf(object)), object, options);
  }

  async modify(name: string, change: (object: K['object']) => K['object'] | void, options: WriteOptions = {}): Promise<K['object']> {
    for (let tries = 0; ; tries++) {
      const object = await this.get(name, options);
      try {
        return await this.update((change(object) ?? object) as K['input'], options);
      } catch (error) {
        if (!(error instanceof ApiError) || !error.isConflict || tries >= mostRetries) throw error;
        await pause(20 * 2 ** tries * (1 + Math.random()), options.signal);
        options.signal?.throwIfAborted();
      }
    }
  }

  async patch(name: string, patch: unknown, options: PatchOptions = {}): Promise<K['object']> {
    if (options.type === 'json') {
      if (options.resourceVersion !== undefined) throw new TypeError('a JSON patch tests /metadata/resourceVersion itself: add an operation test');
      return this.#client.json<K['object']>(this.#path(name), { method: 'PATCH', body: patch, contentType: 'application/json-patch+json', query: this.#writing(options), signal: options.signal });
    }
    let body = patch;
    if (options.resourceVersion !== undefined) {
      const { metadata, ...rest } = patch as { metadata?: object };
      body = { ...rest, metadata: { ...metadata, resourceVersion: options.resourceVersion } };
    }
    return this.#client.json<K['object']>(this.#path(name), { method: 'PATCH', body, contentType: 'application/merge-patch+json', query: this.#writing(options), signal: options.signal });
  }

  async apply(object: K['input'], options: ApplyOptions = {}): Promise<K['object']> {
    if (!(options.fieldManager ?? this.#client.options.fieldManager)) throw new TypeError('apply needs a field manager: set fieldManager of the client, or of the call');
    return this.#client.json<K['object']>(this.#path(nameOf(object)), {
      method: 'PATCH',
      // JSON is YAML.
      contentType: 'application/apply-patch+yaml',
      body: { ...this.#type(), ...object },
      query: this.#writing(options, { force: options.force }),
      signal: options.signal,
    });
  }

  async delete(name: string, options: DeleteOptions = {}): Promise<void> {
    const { dryRun, resourceVersion, uid, gracePeriodSeconds, propagationPolicy, signal } = options;
    const preconditions = resourceVersion !== undefined || uid !== undefined ? { resourceVersion, uid } : undefined;
    const body = { apiVersion: 'v1', kind: 'DeleteOptions', dryRun: dryRun ? ['All'] : undefined, preconditions, gracePeriodSeconds, propagationPolicy };
    await (await this.#client.request(this.#path(name), { method: 'DELETE', body, signal })).arrayBuffer();
  }

  async deleteMany(options: Selection & Pick<DeleteOptions, 'dryRun' | 'propagationPolicy'>): Promise<void> {
    const body = { apiVersion: 'v1', kind: 'DeleteOptions', dryRun: options.dryRun ? ['All'] : undefined, propagationPolicy: options.propagationPolicy };
    await (await this.#client.request(this.#path(), { method: 'DELETE', body, query: queryOf(selectionOf(options)), signal: options.signal })).arrayBuffer();
  }

  async query(options: QueryOptions<K> = {}): Promise<Page<K>> {
    const { page, limit, cursor, sortBy, ascending, facets, known } = options;
    const query = queryOf({ ...filterOf(options), page, limit, cursor, sortBy, ascending, facets: facets?.join(',') });
    const headers: Record<string, string> = known?.etag ? { 'If-None-Match': known.etag } : {};
    const response = await this.#client.request(this.#queries(), { query, headers, signal: options.signal });
    if (response.status === 304 && known) return known;
    const answer = (await response.json()) as Page<K>;
    const etag = response.headers.get('ETag');
    return etag ? { ...answer, etag } : answer;
  }

  async *pages(options: Omit<QueryOptions<K>, 'page' | 'cursor' | 'known'> = {}): AsyncGenerator<Page<K>, void, undefined> {
    let cursor: string | undefined;
    do {
      const page: Page<K> = await this.query({ ...options, cursor });
      yield page;
      cursor = page.cursor;
    } while (cursor);
  }

  watch(options: WatchOptions = {}): AsyncGenerator<Change<K['object']>, void, undefined> {
    const open = async (version: string, signal: AbortSignal): Promise<Response> => {
      const start = version ? { resourceVersion: version } : { sendInitialEvents: true, resourceVersionMatch: 'NotOlderThan' };
      const query = queryOf({ ...selectionOf(options), ...start, watch: true, allowWatchBookmarks: true, timeoutSeconds: 300 });
      return this.#client.request(this.#path(), { query, signal });
    };
    return follow<K['object']>(this.#client, options, silence.watch, async function* (version, signal, alive) {
      const response = await open(version, signal);
      yield opened;
      for await (const line of linesOf(response, alive)) {
        if (!line) continue;
        const event = JSON.parse(line) as WireEvent<K['object']>;
        yield { ...event, version: event.object.metadata?.resourceVersion ?? '' };
      }
    });
  }

  tail(options: TailOptions<K> = {}): AsyncGenerator<Change<K['object']>, void, undefined> {
    const open = (version: string, signal: AbortSignal): Promise<Response> =>
      this.#client.request(this.#queries(), { accept: 'text/event-stream', query: queryOf({ ...filterOf(options), watch: true, resourceVersion: version || undefined }), signal });
    return follow<K['object']>(this.#client, options, silence.tail, async function* (version, signal, alive) {
      let id = '';
      let data = '';
      const response = await open(version, signal);
      yield opened;
      for await (const line of linesOf(response, alive)) {
        if (line.startsWith('id:')) id = line.slice(3).trim();
        if (line.startsWith('data:')) data += line.slice(5).trim();
        if (line || !data) continue;
        yield { ...(JSON.parse(data) as WireEvent<K['object']>), version: id };
        data = '';
      }
    });
  }

  async until(name: string, condition: (object: K['object']) => boolean, options: RequestOptions = {}): Promise<K['object']> {
    for await (const change of this.watch({ fieldSelector: `metadata.name=${name}`, signal: options.signal })) {
      if ((change.type === 'ADDED' || change.type === 'MODIFIED') && condition(change.object)) return change.object;
    }
    options.signal?.throwIfAborted();
    throw new Error(`the watch of ${name} has ended`);
  }

  async #act(name: string, part: string, request: unknown, options: LongActionOptions = {}): Promise<unknown> {
    return this.#client.json(this.#path(name, part), { method: 'POST', body: request, query: queryOf({ wait: options.wait, dryRun: options.dryRun ? 'All' : undefined }), signal: options.signal });
  }

  async #view(name: string, part: string, parameters: Parameters_ = {}, options: RequestOptions = {}): Promise<unknown> {
    return this.#client.json(this.#path(name, part), { query: queryOf(parameters), signal: options.signal });
  }

  async *#stream(name: string, part: string, parameters: Parameters_ = {}, options: RequestOptions = {}): AsyncGenerator<string, void, undefined> {
    const response = await this.#client.request(this.#path(name, part), { accept: '*/*', query: queryOf(parameters), signal: options.signal });
    yield* linesOf(response, () => {});
  }

  #type(): { apiVersion: string; kind: string } {
    const { group, version, kind } = this.facts;
    return { apiVersion: group ? `${group}/${version}` : version, kind };
  }

  #place(): string {
    const { group, version, resource } = this.facts;
    const namespace = this.#namespace === undefined ? '' : `/namespaces/${encodeURIComponent(this.#namespace)}`;
    return `${group || 'core'}/${version}${namespace}/${resource}`;
  }

  #path(name?: string, part = this.#part): string {
    if (name === '') throw new TypeError('an object has a name');
    const below = this.facts.group ? `/apis/${this.#place()}` : `/api/${this.#place().slice('core/'.length)}`;
    return below + (name === undefined ? '' : '/' + encodeURIComponent(name)) + (part && `/${part}`);
  }

  #queries(): string {
    if (!this.facts.queries) throw new TypeError(`the server has no queries of ${this.facts.resource}`);
    const prefix = this.#client.options.queryPrefix ?? this.facts.queries;
    return `${prefix}/${this.#place()}`;
  }

  #writing(options: WriteOptions, more: Parameters_ = {}): string {
    const { dryRun, fieldManager = this.#client.options.fieldManager, fieldValidation = 'Strict' } = options;
    return queryOf({ dryRun: dryRun ? 'All' : undefined, fieldManager, fieldValidation, ...more });
  }

  async #write(method: string, path: string, object: K['input'], options: WriteOptions): Promise<K['object']> {
    // A subresource may have objects of another kind, which have their own type.
    const body = this.#part ? object : { ...this.#type(), ...object };
    return this.#client.json<K['object']>(path, { method, body, query: this.#writing(options), signal: options.signal });
  }
}

/** Returns a resource as the type of its kind, without methods that its server does not serve. */
export function resource<T>(client: Client, facts: Facts): T {
  return new Resource<Kind>(client, facts) as unknown as T;
}

/** The property of a subresource: its name in camel case. */
function propertyOf(name: string): string {
  return name.replace(/[^A-Za-z0-9]+(.)?/g, (_, next: string | undefined) => next?.toUpperCase() ?? '');
}

function nameOf(object: { metadata: AnyObject['metadata'] }): string {
  const { name } = object.metadata;
  if (!name) throw new TypeError('the object has no metadata.name');
  return name;
}

// ---------------------------------------------------------------- parameters

type Value = string | number | boolean | Date | undefined;
type Parameters_ = { readonly [name: string]: Value | readonly Value[] };

function queryOf(parameters: Parameters_): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? (value as readonly Value[]) : [value as Value]) {
      if (one !== undefined) query.append(name, one instanceof Date ? one.toISOString() : String(one));
    }
  }
  const text = query.toString();
  return text && `?${text}`;
}

function selectionOf({ labelSelector, fieldSelector }: Selection): Parameters_ {
  if (typeof labelSelector === 'object') labelSelector = Object.entries(labelSelector).map(([label, value]) => `${label}=${value}`).join(',');
  return { labelSelector, fieldSelector };
}

function filterOf<K extends Kind>(options: Filter<K>): Parameters_ {
  const { name, q, fields, showManagedFields } = options;
  const conditions: Record<string, Value | readonly Value[]> = {};
  for (const [field, condition] of Object.entries(options.where ?? {}) as [string, Value | readonly Value[] | Record<string, Value | readonly Value[]>][]) {
    if (typeof condition !== 'object' || condition instanceof Date || Array.isArray(condition)) conditions[field] = condition as Value | readonly Value[];
    else for (const [operator, value] of Object.entries(condition)) conditions[`${field}[${operator}]`] = value;
  }
  return { ...conditions, ...selectionOf(options), name, q, fields: fields?.join(','), showManagedFields };
}

// ---------------------------------------------------------------- watches

interface WireEvent<T> {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR';
  object: T & { code?: number; metadata?: { annotations?: Record<string, string> } };
}
type Versioned<T> = WireEvent<T> & { version: string };
/** The server has accepted the watch. */
const opened = 'opened';

/** Yields the lines of an answer as they come, and calls alive with each part. */
async function* linesOf(response: Response, alive: () => void): AsyncGenerator<string, void, undefined> {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      alive();
      rest += decoder.decode(value, { stream: !done });
      const lines = rest.split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) yield line.endsWith('\r') ? line.slice(0, -1) : line;
      if (done) break;
    }
    if (rest) yield rest;
  } finally {
    void reader.cancel().catch(() => {});
  }
}

/** Answers after which a watch is not tried again. */
const final = new Set([400, 401, 403, 404, 405, 406]);

/** The error of a watch whose connection was silent for too long. */
class Silent extends Error {}

/**
 * follow delivers the events of a watch, which open begins at a version. It connects again whenever the connection ends,
 * after a pause that grows while that fails. When it has to begin anew, it delivers the differences only.
 */
async function* follow<T extends AnyObject>(
  client: Client,
  options: { signal?: AbortSignal | undefined; resourceVersion?: string | undefined },
  longestSilence: number,
  open: (version: string, signal: AbortSignal, alive: () => void) => AsyncGenerator<Versioned<T> | typeof opened, void, undefined>,
): AsyncGenerator<Change<T>, void, undefined> {
  const { first = 500, longest = 30_000 } = client.options.reconnect ?? {};
  const { signal } = options;
  const known = new Map<string, T>();
  let version = options.resourceVersion ?? '';
  let wait = first;
  let isLost = false;
  while (!signal?.aborted) {
    const connection = new AbortController();
    const end = () => connection.abort();
    signal?.addEventListener('abort', end);
    let timer: ReturnType<typeof setTimeout> | undefined;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(() => connection.abort(new Silent('the server has been silent for too long')), longestSilence);
    };
    // Of the present objects, those that have come. undefined after all have.
    let present: Set<string> | undefined = version ? undefined : new Set();
    const began = Date.now();
    try {
      alive();
      for await (const event of open(version, connection.signal, alive)) {
        if (signal?.aborted) return;
        if (event === opened) {
          if (isLost && !present) yield { type: 'SYNCED', resourceVersion: version };
          isLost &&= present !== undefined;
          continue;
        }
        const { object } = event;
        if (event.type === 'ERROR') throw new ApiError(object.code ?? 500, object as Status);
        wait = first;
        if (event.type === 'BOOKMARK') {
          if (event.version) version = event.version;
          if (present && object.metadata?.annotations?.['k8s.io/initial-events-end'] === 'true') {
            for (const [id, gone] of known) {
              if (present.has(id)) continue;
              known.delete(id);
              yield { type: 'DELETED', object: gone };
            }
            present = undefined;
            isLost = false;
            yield { type: 'SYNCED', resourceVersion: version };
          }
          continue;
        }
        // The present objects are in no order of versions.
        if (!present && event.version) version = event.version;
        const id = idOf(object);
        const before = known.get(id);
        present?.add(id);
        if (event.type === 'DELETED') {
          known.delete(id);
          yield { type: 'DELETED', object };
          continue;
        }
        known.set(id, object);
        if (!before) yield { type: event.type, object };
        else if (before.metadata.resourceVersion !== object.metadata.resourceVersion) yield { type: 'MODIFIED', object };
      }
    } catch (error) {
      if (signal?.aborted) return;
      if (error instanceof ApiError) {
        if (final.has(error.code)) throw error;
        // The history is gone: the next request begins anew.
        if (error.isExpired && version) {
          version = '';
          continue;
        }
      }
      isLost = true;
      yield { type: 'LOST', error: connection.signal.reason instanceof Silent ? connection.signal.reason : error, retryIn: wait };
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', end);
      connection.abort();
    }
    // Servers end watches after a while, which is no failure.
    if (Date.now() - began > longest) continue;
    await pause(wait * (0.75 + Math.random() / 2), signal);
    wait = Math.min(wait * 2, longest);
  }
}

function idOf(object: AnyObject): string {
  const { uid, namespace = '', name = '' } = object.metadata;
  return uid ?? `${namespace}/${name}`;
}
