// The query API: which fields of a kind it knows, and pages of what they select. It alone sorts, filters and
// searches, at any number of objects.

import { get, Refused, type Resource, type Status, streamed } from './api';
import { type Kind } from './discovery';
import { type Column } from './table';

export interface Field {
  name: string;
  type: string;
  sortable?: boolean;
  filterable?: boolean;
  text?: boolean;
  description?: string;
}
export interface Filter {
  field: string;
  op: string; // empty is equal
  value: string;
}
export interface Asked {
  filters: Filter[];
  labels: string; // a selector
  words: string;
  sortBy: string;
  ascending: boolean;
}
export interface Page {
  items: Resource[];
  totalItems: number;
  resourceVersion: string;
  cursor?: string;
  columns?: Column[];
  rows?: unknown[][] | null;
}

const known = new Map<string, Promise<Map<string, Field[]>>>();

// fieldsOf reads which fields of a kind can be asked for; undefined if the query API does not have the kind.
export async function fieldsOf(prefix: string | undefined, kind: Kind): Promise<Field[] | undefined> {
  if (!prefix) return undefined;
  const path = `${prefix}/${kind.group || 'core'}/${kind.version}`;
  let all = known.get(path);
  if (!all) {
    all = get<{ resources?: { name: string; fields?: Field[] }[] }>(path).then((d) => new Map((d.resources ?? []).map((r) => [r.name, r.fields ?? []])));
    known.set(path, all);
    // Definitions of custom resources change while the page is open.
    setTimeout(() => known.delete(path), 60_000);
    all.catch(() => known.delete(path));
  }
  try {
    return (await all).get(kind.resource);
  } catch (error) {
    if (error instanceof Refused) return undefined;
    throw error;
  }
}

// listed are the resources, as group/resource, that the caller may list somewhere; undefined without a query API.
export async function listed(prefix: string | undefined): Promise<Set<string> | undefined> {
  if (!prefix) return undefined;
  try {
    const answer = await get<{ resources?: { group?: string; name: string }[] | null }>(prefix);
    return new Set((answer.resources ?? []).map((r) => `${r.group === 'core' ? '' : (r.group ?? '')}/${r.name}`));
  } catch (error) {
    if (error instanceof Refused) return undefined;
    throw error;
  }
}

// conditionsOf are the parameters that select objects.
export function conditionsOf(asked: Asked): URLSearchParams {
  const q = new URLSearchParams();
  for (const f of asked.filters) if (f.field && f.value !== '') q.append(f.op ? `${f.field}[${f.op}]` : f.field, f.value);
  if (asked.labels.trim()) q.append('labelSelector', asked.labels.trim());
  if (asked.words.trim()) q.append('q', asked.words.trim());
  return q;
}

export function pathOfQuery(prefix: string, kind: Kind, namespace: string): string {
  const ns = kind.namespaced && namespace ? `namespaces/${encodeURIComponent(namespace)}/` : '';
  return `${prefix}/${kind.group || 'core'}/${kind.version}/${ns}${kind.resource}`;
}

export interface Part {
  limit: number;
  page?: number;
  cursor?: string;
  columns?: boolean;
  fields?: string; // without, objects are whole
}

// parametersOf are the parameters of a page.
export function parametersOf(asked: Asked, part: Part): URLSearchParams {
  const q = conditionsOf(asked);
  q.append('limit', String(part.limit));
  if (part.page) q.append('page', String(part.page));
  if (part.cursor) q.append('cursor', part.cursor);
  if (part.columns) q.append('columns', 'true');
  if (part.fields) q.append('fields', part.fields);
  if (asked.sortBy) {
    q.append('sortBy', asked.sortBy);
    q.append('ascending', String(asked.ascending));
  }
  return q;
}

// pageOf reads a page.
export function pageOf(prefix: string, kind: Kind, namespace: string, asked: Asked, part: Part, signal?: AbortSignal): Promise<Page> {
  return get<Page>(`${pathOfQuery(prefix, kind, namespace)}?${parametersOf(asked, part)}`, signal ? { signal } : {});
}

// pagesOf reads what a query selects, page by page, up to so many objects.
export async function* pagesOf(prefix: string, kind: Kind, namespace: string, asked: Asked, part: Omit<Part, 'page' | 'cursor'>, most: number, signal: AbortSignal): AsyncGenerator<Page> {
  let cursor: string | undefined;
  let left = most;
  do {
    const page: Page = await pageOf(prefix, kind, namespace, asked, { ...part, limit: Math.min(part.limit, left), ...(cursor ? { cursor } : {}) }, signal);
    yield page;
    left -= page.items.length;
    cursor = page.cursor;
  } while (cursor && left > 0 && !signal.aborted);
}

export interface Count {
  value: string | null;
  count: number;
}

// countsOf counts the objects by the values of a field, the most frequent first.
export async function countsOf(prefix: string, kind: Kind, namespace: string, field: string, signal: AbortSignal, most = 50): Promise<Count[]> {
  const q = new URLSearchParams({ limit: '0', facets: field });
  const answer = await get<{ facets?: Record<string, Count[]> }>(`${pathOfQuery(prefix, kind, namespace)}?${q}`, { signal });
  return (answer.facets?.[field] ?? []).slice(0, most);
}

// changes calls connected when the server has begun to answer, and each with the version to go on from whenever something
// that is selected has changed, until the signal ends or the server does.
export async function changes(
  prefix: string,
  kind: Kind,
  namespace: string,
  asked: Asked,
  from: string,
  signal: AbortSignal,
  connected: () => void,
  each: (version: string, changed: boolean) => void,
): Promise<void> {
  const q = conditionsOf(asked);
  q.append('watch', 'true');
  q.append('resourceVersion', from);
  q.append('fields', 'metadata.name');
  let version = from;
  let type = '';
  for await (const line of streamed(`${pathOfQuery(prefix, kind, namespace)}?${q}`, 'text/event-stream', signal, true, connected)) {
    if (line.startsWith('id: ')) version = line.slice(4);
    else if (line.startsWith('event: ')) type = line.slice(7);
    else if (line.startsWith('data: ')) {
      if (type === 'ERROR') {
        const { object: status } = JSON.parse(line.slice(6)) as { object: Status };
        throw new Refused(status.code ?? 500, status, true);
      }
      each(version, type !== 'BOOKMARK');
    }
  }
}
