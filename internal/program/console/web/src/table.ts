// The columns and cells of tables, and rows of kinds that the query API does not have.

import { type Event, get, type Meta } from './api';
import { type Kind, pathOf } from './discovery';

export const tableType = 'application/json;as=Table;v=v1;g=meta.k8s.io';

export interface Column {
  name: string;
  type: string;
  format?: string;
  description?: string;
  priority?: number;
  sortBy?: string; // the field of the query API; without, the column is not sorted
}
export interface Row {
  key: string;
  meta: Meta;
  cells: unknown[];
  object?: unknown; // what else is known of the object
}
interface Wire {
  columnDefinitions?: Column[] | null;
  rows?: { cells: unknown[]; object: { metadata: Meta } }[] | null;
  metadata?: { resourceVersion?: string; continue?: string; remainingItemCount?: number };
}

export function keyOf(meta: Meta): string {
  return `${meta.namespace ?? ''}/${meta.name}`;
}

const chunk = 500;

// Rows are the first objects of a list, in its order, and more when they are asked for.
export class Rows {
  columns: Column[] = [];
  rows = new Map<string, Row>();
  version = '';
  next = '';
  remaining = 0;

  private take(table: Wire): Row[] {
    if (table.columnDefinitions?.length) this.columns = table.columnDefinitions;
    return (table.rows ?? []).map((r) => ({ key: keyOf(r.object.metadata), meta: r.object.metadata, cells: r.cells }));
  }

  async load(kind: Kind, namespace: string, labelSelector: string, signal: AbortSignal, further = false): Promise<void> {
    const table = await get<Wire>(pathOf(kind, namespace, undefined, undefined, { limit: chunk, labelSelector, continue: further ? this.next : '' }), { accept: tableType, signal });
    const rows = further ? new Map(this.rows) : new Map<string, Row>();
    for (const row of this.take(table)) rows.set(row.key, row);
    this.rows = rows;
    this.next = table.metadata?.continue ?? '';
    this.remaining = this.next ? (table.metadata?.remainingItemCount ?? 1) : 0;
    if (!further) this.version = table.metadata?.resourceVersion ?? '';
  }

  // apply carries out an event of the watch, and returns the key of its row.
  apply(event: Event<unknown>): string | undefined {
    if (event.type !== 'ADDED' && event.type !== 'MODIFIED' && event.type !== 'DELETED') return undefined;
    let last: string | undefined;
    for (const row of this.take(event.object as Wire)) {
      last = row.key;
      if (event.type === 'DELETED') this.rows.delete(row.key);
      else if (this.rows.has(row.key) || !this.next) this.rows.set(row.key, row);
    }
    return last;
  }
}

// age is how long ago a time was, as kubectl writes it.
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

// isAge reports whether a column is the age of the object, which grows while the page is looked at.
export function isAge(column: Column): boolean {
  return column.sortBy ? column.sortBy === 'creationTimestamp' : column.name === 'Age' || column.name === 'Created At';
}

export function cellText(value: unknown): string {
  if (value === null || value === undefined) return '';
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}
