// The columns that a table can show: those of the kind, its fields that no column has, and labels.

import { type Obj } from './api';
import { type Field } from './querying';
import { cellText, type Column, isAge, type Row } from './table';
import { isObj } from './values';

export interface Shown {
  id: string; // in the address
  name: string;
  title?: string;
  sortBy?: string;
  number: boolean;
  age: boolean;
  first: boolean; // has the link to the object
  usual: boolean; // is shown unless others are chosen
  cell: (row: Row) => unknown;
}

const labelPrefix = 'label:';
// A comma separates names in the address.
const idOf = (name: string) => name.replaceAll(',', ' ');

function at(object: unknown, path: string): unknown {
  let value = object;
  for (const part of path.split('.')) value = isObj(value as Obj) ? (value as Obj)[part] : undefined;
  return value;
}

export function columnsOf(columns: Column[], fields: Field[], namespaced: boolean, oneNamespace: boolean, chosen: string[] | undefined): { all: Shown[]; shown: Shown[] } {
  const all: Shown[] = columns.map((c, i) => ({
    id: idOf(c.name),
    name: c.name,
    ...(c.description ? { title: c.description } : {}),
    ...(c.sortBy ? { sortBy: c.sortBy } : {}),
    number: c.type === 'integer' || c.type === 'number',
    age: isAge(c),
    first: i === 0,
    usual: !c.priority,
    cell: (r) => r.cells[i],
  }));
  if (namespaced && !columns.some((c) => c.name === 'Namespace'))
    all.unshift({ id: 'Namespace', name: 'Namespace', ...(fields.length > 0 ? { sortBy: 'namespace' } : {}), number: false, age: false, first: false, usual: !oneNamespace, cell: (r) => r.meta.namespace });
  const has = new Set(all.map((c) => c.sortBy));
  for (const f of fields)
    if (!has.has(f.name) && f.name.includes('.') && !f.name.startsWith('column:'))
      all.push({ id: idOf(f.name), name: f.name, ...(f.description ? { title: f.description } : {}), ...(f.sortable ? { sortBy: f.name } : {}), number: f.type === 'number', age: false, first: false, usual: false, cell: (r) => at(r.object, f.name) });
  for (const id of chosen ?? []) if (id.startsWith(labelPrefix)) all.push(labelColumn(id.slice(labelPrefix.length)));
  const shown = chosen ? all.filter((c) => c.first || chosen.includes(c.id)) : all.filter((c) => c.usual);
  return { all, shown };
}

export function labelColumn(label: string): Shown {
  return { id: labelPrefix + label, name: label, title: `the label ${label}`, number: false, age: false, first: false, usual: false, cell: (r) => r.meta.labels?.[label] };
}

// projectionOf are the fields that a page needs for columns.
export function projectionOf(shown: Shown[]): string {
  const paths = ['metadata.name', 'metadata.labels', 'metadata.creationTimestamp', 'metadata.deletionTimestamp'];
  for (const c of shown) if (c.id.includes('.') && !c.id.startsWith(labelPrefix) && c.sortBy === c.id) paths.push(c.id);
  return [...new Set(paths)].join(',');
}

// textOf is a cell for another program: times as such, not as ages.
export function textOf(column: Shown, row: Row): string {
  return column.age ? (row.meta.creationTimestamp ?? '') : cellText(column.cell(row));
}
