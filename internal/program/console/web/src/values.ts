// Values at paths, and what differs between two objects.

import { type Cause, type Json, type Obj, type Resource } from './api';

export type Path = (string | number)[];

export function isObj(v: unknown): v is Obj {
  return typeof v === 'object' && v !== null && !Array.isArray(v);
}

export function at(value: unknown, path: Path): unknown {
  for (const step of path) value = value === null || value === undefined ? undefined : (value as Record<string | number, unknown>)[step];
  return value;
}

// withAt returns a copy with another value at a path; undefined takes it away.
export function withAt<T>(value: T, path: Path, to: unknown): T {
  if (path.length === 0) return to as T;
  const [step, ...rest] = path as [string | number, ...Path];
  if (typeof step === 'number') {
    const list = Array.isArray(value) ? [...(value as unknown[])] : [];
    if (rest.length === 0 && to === undefined) list.splice(step, 1);
    else list[step] = withAt(list[step], rest, to);
    return list as T;
  }
  const object: Record<string, unknown> = isObj(value) ? { ...value } : {};
  const inner = withAt(object[step], rest, to);
  if (inner === undefined) delete object[step];
  else set(object, step, inner);
  return object as T;
}

// set is safe for names such as __proto__, which an object may have.
function set(object: Record<string, unknown>, name: string, value: unknown): void {
  Object.defineProperty(object, name, { value, enumerable: true, configurable: true, writable: true });
}

export function same(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((v, i) => same(v, b[i]));
  if (isObj(a) && isObj(b)) {
    const names = Object.keys(a);
    return names.length === Object.keys(b).length && names.every((n) => Object.hasOwn(b, n) && same(a[n], b[n]));
  }
  return false;
}

// difference finds what was set or changed, and which paths are gone. Lists count as a whole.
export function difference(before: unknown, after: unknown): { set: Obj; gone: Path[] } {
  const gone: Path[] = [];
  const walk = (a: Obj, b: Obj, path: Path): Obj => {
    const changed: Obj = {};
    for (const [name, value] of Object.entries(b)) {
      const old = Object.hasOwn(a, name) ? a[name] : undefined;
      if (same(old, value)) continue;
      if (isObj(old) && isObj(value)) {
        const inner = walk(old, value, [...path, name]);
        if (Object.keys(inner).length > 0) set(changed, name, inner);
      } else set(changed, name, value);
    }
    for (const name of Object.keys(a)) if (!Object.hasOwn(b, name)) gone.push([...path, name]);
    return changed;
  };
  return { set: walk(isObj(before) ? before : {}, isObj(after) ? after : {}, []), gone };
}

// merged lays one object over another; lists are replaced.
export function merged(under: Obj, over: Obj): Obj {
  const all: Obj = { ...under };
  for (const [name, value] of Object.entries(over)) {
    const old = Object.hasOwn(all, name) ? all[name] : undefined;
    set(all, name, isObj(old) && isObj(value) ? merged(old, value) : value);
  }
  return all;
}

// owned picks out of an object what a field manager has applied before, so that applying anew does not
// give it up. Lists count as a whole.
export function owned(object: Resource, manager: string): Obj {
  const entry = object.metadata.managedFields?.find((m) => m.manager === manager && m.operation === 'Apply' && !m.subresource);
  const pick = (fields: Obj, value: unknown): Json | undefined => {
    const names = Object.keys(fields).filter((f) => f.startsWith('f:'));
    if (!isObj(value) || names.length === 0) return value as Json | undefined;
    const picked: Obj = {};
    for (const f of names) {
      const name = f.slice(2);
      if (!Object.hasOwn(value, name)) continue;
      const inner = pick(fields[f] as Obj, value[name]);
      if (inner !== undefined) set(picked, name, inner);
    }
    return picked;
  };
  return entry?.fieldsV1 ? (pick(entry.fieldsV1, object) as Obj) : {};
}

// editable is what of an object a person edits: not its status, nor what the server keeps.
export function editable(object: Resource): Obj {
  const { status: _, metadata, ...rest } = object as unknown as Obj & { metadata: Obj };
  const kept: Obj = {};
  for (const name of ['name', 'generateName', 'namespace', 'labels', 'annotations', 'finalizers', 'ownerReferences']) {
    const value = metadata[name];
    if (value !== undefined) kept[name] = value;
  }
  const { apiVersion, kind, ...others } = rest as Obj;
  return { ...(apiVersion ? { apiVersion } : {}), ...(kind ? { kind } : {}), metadata: kept, ...others };
}

// pathOfField reads the field of a cause, such as spec.ports[2].name or metadata.labels[a.b/c].
export function pathOfField(field: string): Path {
  const path: Path = [];
  for (const m of field.replace(/^\./, '').matchAll(/\[([^\]]*)\]|([^.[\]]+)/g)) {
    if (m[2] !== undefined) path.push(m[2]);
    else path.push(/^\d+$/.test(m[1]!) ? Number(m[1]) : m[1]!.replace(/^"(.*)"$/, '$1'));
  }
  return path;
}

export function causesAt(causes: Cause[], path: Path): Cause[] {
  return causes.filter((c) => c.field && same(pathOfField(c.field), path));
}
