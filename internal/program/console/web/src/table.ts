// Tables with the columns that a kind has, kept up to date by a watch.

import { type Event, get, type Meta, Refused } from './api';
import { type Kind, pathOf } from './discovery';

export const tableType = 'application/json;as=Table;v=v1;g=meta.k8s.io';

export interface Column {
  name: string;
  type: string;
  format?: string;
  description?: string;
  priority?: number;
}
export interface Row {
  key: string;
  meta: Meta;
  cells: unknown[];
}
interface Wire {
  columnDefinitions?: Column[] | null;
  rows?: { cells: unknown[]; object: { metadata: Meta } }[] | null;
  metadata?: { resourceVersion?: string; continue?: string; remainingItemCount?: number };
}

export function keyOf(meta: Meta): string {
  return `${meta.namespace ?? ''}/${meta.name}`;
}

// Rows holds at most so many; what is beyond them is found by the query API.
export const most = 2000;
const chunk = 500;

export class Rows {
  columns: Column[] = [];
  rows = new Map<string, Row>();
  version = '';
  more = 0; // how many are beyond

  private take(table: Wire): Row[] {
    if (table.columnDefinitions?.length) this.columns = table.columnDefinitions;
    return (table.rows ?? []).map((r) => ({ key: keyOf(r.object.metadata), meta: r.object.metadata, cells: r.cells }));
  }

  // load reads the list in chunks.
  async load(kind: Kind, namespace: string, signal: AbortSignal): Promise<void> {
    const rows = new Map<string, Row>();
    let next = '';
    do {
      const table = await get<Wire>(pathOf(kind, namespace, undefined, undefined, { limit: chunk, continue: next }), { accept: tableType, signal });
      for (const row of this.take(table)) rows.set(row.key, row);
      next = table.metadata?.continue ?? '';
      this.version = table.metadata?.resourceVersion ?? '';
      this.more = next ? (table.metadata?.remainingItemCount ?? 1) : 0;
    } while (next && rows.size < most);
    this.rows = rows;
  }

  // fetch reads the rows of some objects that are not loaded; those that are gone stay away. Who may list
  // may not always get.
  async fetch(kind: Kind, metas: Meta[], signal: AbortSignal): Promise<void> {
    await Promise.all(
      metas.map(async (m) => {
        try {
          const table = await get<Wire>(pathOf(kind, m.namespace, undefined, undefined, { fieldSelector: 'metadata.name=' + m.name }), { accept: tableType, signal });
          this.rows.delete(keyOf(m));
          for (const row of this.take(table)) this.rows.set(row.key, row);
        } catch (error) {
          if (!(error instanceof Refused)) throw error;
          this.rows.delete(keyOf(m));
        }
      }),
    );
  }

  // apply carries out an event of the watch, and says what row it was about.
  apply(event: Event<unknown>): string | undefined {
    if (event.type !== 'ADDED' && event.type !== 'MODIFIED' && event.type !== 'DELETED') return undefined;
    let last: string | undefined;
    for (const row of this.take(event.object as Wire)) {
      last = row.key;
      if (event.type === 'DELETED') this.rows.delete(row.key);
      else if (this.rows.has(row.key) || this.rows.size < most) this.rows.set(row.key, row);
    }
    return last;
  }
}

// compare orders cells as what they are: numbers, times and texts.
export function compare(a: unknown, b: unknown): number {
  if (a === b) return 0;
  if (a === null || a === undefined || a === '') return -1;
  if (b === null || b === undefined || b === '') return 1;
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

// age says how long ago a time was, as kubectl does.
export function age(time: string | undefined, now: number): string {
  if (!time) return '';
  const seconds = Math.max(0, Math.floor((now - Date.parse(time)) / 1000));
  if (seconds < 120) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 10) return seconds % 60 ? `${minutes}m${seconds % 60}s` : `${minutes}m`;
  if (minutes < 180) return `${minutes}m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 8) return minutes % 60 ? `${hours}h${minutes % 60}m` : `${hours}h`;
  if (hours < 48) return `${hours}h`;
  const days = Math.floor(hours / 24);
  if (days < 8) return hours % 24 ? `${days}d${hours % 24}h` : `${days}d`;
  if (days < 730) return `${days}d`;
  return `${Math.floor(days / 365)}y`;
}

// isAge says whether a column is the age of the object, which grows while the page is looked at.
export function isAge(column: Column): boolean {
  return column.name === 'Age' || column.name === 'Created At';
}
