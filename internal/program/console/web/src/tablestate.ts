// What a table shows, as the address has it: Back, a reload and a link restore it.

import { type Kind } from './discovery';
import { type Asked, type Filter } from './querying';
import { go, kindPath, link, type Place } from './router';

export interface TableState extends Asked {
  page: number;
  columns: string[] | undefined; // names of those that are shown; undefined are the usual ones
  open: string; // the key of the object in the panel
}

const parts = /^([^~]*)~([^~]*)~(.*)$/s;

export function stateOf(place: Place, kind: Kind): TableState {
  const p = place.parameters;
  const sort = p.get('sort') ?? '';
  const filters = p.getAll('f').flatMap((text): Filter[] => {
    const m = text.match(parts);
    return m ? [{ field: m[1]!, op: m[2]!, value: m[3]! }] : [];
  });
  const columns = p.has('cols') ? p.get('cols')!.split(',') : storedColumns(kind);
  return {
    filters,
    labels: p.get('labels') ?? '',
    words: p.get('q') ?? '',
    sortBy: sort.replace(/^-/, ''),
    ascending: !sort.startsWith('-'),
    page: Math.max(1, Number.parseInt(p.get('page') ?? '1', 10) || 1),
    columns,
    open: p.get('open') ?? '',
  };
}

// show changes what a table shows. Typing replaces the address, so that Back does not go letter by letter.
export function show(kind: Kind, namespace: string, state: TableState, change: Partial<TableState>, replace = false): void {
  const next = { ...state, ...change };
  const selects = ['filters', 'labels', 'words', 'sortBy', 'ascending'].some((k) => k in change);
  if (selects && !('page' in change)) next.page = 1;
  go(
    link(['k', ...kindPath(kind)], {
      ns: kind.namespaced ? namespace : undefined,
      q: next.words,
      labels: next.labels,
      f: next.filters.map((f) => `${f.field}~${f.op}~${f.value}`),
      sort: next.sortBy && (next.ascending ? '' : '-') + next.sortBy,
      page: next.page > 1 ? String(next.page) : undefined,
      cols: next.columns?.join(','),
      open: next.open,
    }),
    replace,
  );
}

const stored = (kind: Kind) => `annex.columns.${kind.group}/${kind.resource}`;

function storedColumns(kind: Kind): string[] | undefined {
  return localStorage.getItem(stored(kind))?.split(',');
}

export function keepColumns(kind: Kind, columns: string[] | undefined): void {
  if (columns) localStorage.setItem(stored(kind), columns.join(','));
  else localStorage.removeItem(stored(kind));
}
