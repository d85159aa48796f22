// Exports: CSV of the columns that are shown, or YAML of whole objects, of a selection or of all that a filter selects.

import { get, type Meta, type Resource } from './api';
import { type Kind, pathOf } from './discovery';
import { type Asked, pagesOf } from './querying';
import { projectionOf, type Shown, textOf } from './shown';
import { keyOf, type Row } from './table';

export const mostExported = 50_000;
const mostBytes = 128 << 20;

// Spreadsheets take texts that begin so for formulas.
const formula = /^[=+\-@\t\r]/;

export function quoted(text: string): string {
  if (formula.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export interface Exported {
  blob: Blob;
  count: number;
  whole: boolean;
}

// exported reads what is asked for and calls progress with the number of objects. Without wanted, it is all that the
// query selects.
export async function exported(
  format: 'csv' | 'yaml',
  prefix: string,
  kind: Kind,
  namespace: string,
  asked: Asked,
  columns: Shown[],
  wanted: Meta[] | undefined,
  signal: AbortSignal,
  progress: (n: number) => void,
): Promise<Exported> {
  const parts: string[] = [];
  let bytes = 0;
  let count = 0;
  let total = wanted?.length ?? 0;
  const add = (text: string) => {
    parts.push(text);
    bytes += text.length;
  };
  const { stringify } = await import('yaml');
  const document = (object: Resource) => add('---\n' + stringify(object, { lineWidth: 0 }));
  if (format === 'yaml' && wanted) {
    for (const meta of wanted) {
      if (signal.aborted || bytes > mostBytes) break;
      const { metadata, ...rest } = await get<Resource>(pathOf(kind, meta.namespace, meta.name), { signal });
      const { managedFields: _, ...kept } = metadata;
      document({ ...rest, metadata: kept } as Resource);
      progress(++count);
    }
  } else {
    const keys = wanted && new Set(wanted.map(keyOf));
    if (format === 'csv') add(columns.map((c) => quoted(c.name)).join(',') + '\n');
    for await (const page of pagesOf(prefix, kind, namespace, asked, { limit: 500, columns: format === 'csv', ...(format === 'csv' ? { fields: projectionOf(columns) } : {}) }, mostExported, signal)) {
      if (!keys) total = page.totalItems;
      page.items.forEach((item, i) => {
        if (keys && !keys.has(keyOf(item.metadata))) return;
        count++;
        if (format === 'yaml') return document(item);
        const row: Row = { key: keyOf(item.metadata), meta: item.metadata, cells: page.rows?.[i] ?? [], object: item };
        add(columns.map((c) => quoted(textOf(c, row))).join(',') + '\n');
      });
      progress(count);
      if (bytes > mostBytes || (keys && count >= keys.size)) break;
    }
  }
  return { blob: new Blob(parts, { type: format === 'csv' ? 'text/csv' : 'application/yaml' }), count, whole: count >= total };
}

export function download(blob: Blob, name: string): void {
  const a = document.createElement('a');
  a.href = URL.createObjectURL(blob);
  a.download = name;
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 60_000);
}
