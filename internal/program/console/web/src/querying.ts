// The query API: which fields of a kind it knows, and pages of what they select.

import { get, lines, Refused, request, type Resource } from './api';
import { type Kind } from './discovery';

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
  words: string;
  sortBy: string;
  ascending: boolean;
  page: number;
  limit: number;
}
export interface Page {
  items: Resource[];
  totalItems: number;
  resourceVersion: string;
  cursor?: string;
}

const known = new Map<string, Promise<Map<string, Field[]>>>();

// fieldsOf says which fields of a kind can be asked for; undefined if the query API does not have the kind.
export async function fieldsOf(prefix: string | undefined, kind: Kind): Promise<Field[] | undefined> {
  if (!prefix) return undefined;
  const path = `${prefix}/${kind.group || 'core'}/${kind.version}`;
  let all = known.get(path);
  if (!all) {
    all = get<{ resources?: { name: string; fields?: Field[] }[] }>(path).then((d) => new Map((d.resources ?? []).map((r) => [r.name, r.fields ?? []])));
    known.set(path, all);
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

function parametersOf(asked: Asked): URLSearchParams {
  const q = new URLSearchParams();
  for (const f of asked.filters) if (f.field && f.value !== '') q.append(f.op ? `${f.field}[${f.op}]` : f.field, f.value);
  if (asked.words.trim()) q.append('q', asked.words.trim());
  return q;
}

function base(prefix: string, kind: Kind, namespace: string): string {
  const ns = kind.namespaced && namespace ? `namespaces/${encodeURIComponent(namespace)}/` : '';
  return `${prefix}/${kind.group || 'core'}/${kind.version}/${ns}${kind.resource}`;
}

// pageOf reads names only: what a row shows comes as a table from elsewhere.
export function pageOf(prefix: string, kind: Kind, namespace: string, asked: Asked, signal: AbortSignal): Promise<Page> {
  const q = parametersOf(asked);
  q.append('page', String(asked.page));
  q.append('limit', String(asked.limit));
  if (asked.sortBy) {
    q.append('sortBy', asked.sortBy);
    q.append('ascending', String(asked.ascending));
  }
  q.append('fields', 'metadata.name');
  return get<Page>(`${base(prefix, kind, namespace)}?${q}`, { signal });
}

export interface Count {
  value: string | null;
  count: number;
}

// countsOf says how many objects have which value of a field, the most frequent first.
export async function countsOf(prefix: string, kind: Kind, namespace: string, field: string, signal: AbortSignal): Promise<Count[]> {
  const q = new URLSearchParams({ limit: '0', facets: field });
  const answer = await get<{ facets?: Record<string, Count[]> }>(`${base(prefix, kind, namespace)}?${q}`, { signal });
  return (answer.facets?.[field] ?? []).slice(0, 50);
}

// changes calls each whenever something that is selected has changed, until the signal ends.
export async function changes(prefix: string, kind: Kind, namespace: string, asked: Asked, from: string, signal: AbortSignal, each: () => void): Promise<void> {
  const q = parametersOf(asked);
  q.append('watch', 'true');
  q.append('resourceVersion', from);
  q.append('fields', 'metadata.name');
  const response = await request(`${base(prefix, kind, namespace)}?${q}`, { accept: 'text/event-stream', signal });
  for await (const line of lines(response)) if (/^event: ?(ADDED|MODIFIED|DELETED)/.test(line)) each();
}
