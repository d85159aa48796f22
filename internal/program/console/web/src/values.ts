// Values at paths, and what differs between two objects.

import { type Cause, Refused, type Obj, type Resource } from './api';

export type Path = (string | number)[];

export function isObj(v: unknown): v is Obj {
  return typeof v === 'object' && v !== null && !Array.isArray(v);
}

export function at(value: unknown, path: Path): unknown {
  for (const step of path) value = own(value, step);
  return value;
}

// own reads what an object has itself: constructor is no field of one without it.
export function own(value: unknown, name: string | number): unknown {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, name) ? (value as Record<string | number, unknown>)[name] : undefined;
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
  const inner = withAt(own(object, step), rest, to);
  if (inner === undefined) delete object[step];
  else set(object, step, inner);
  return object as T;
}

// set is safe for names such as __proto__, which an object may have.
export function set(object: Record<string, unknown>, name: string, value: unknown): void {
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

// What kubectl keeps of its applies is nothing to look at or to edit.
export const lastApplied = 'kubectl.kubernetes.io/last-applied-configuration';

// editable is what of an object a person edits: not its status, nor what the server and kubectl keep.
export function editable(object: Resource): Obj {
  const { status: _, metadata, ...rest } = object as unknown as Obj & { metadata: Obj };
  const kept: Obj = {};
  for (const name of ['name', 'generateName', 'namespace', 'labels', 'annotations', 'finalizers', 'ownerReferences']) {
    const value = metadata[name];
    if (value !== undefined) kept[name] = value;
  }
  if (isObj(kept['annotations']) && Object.hasOwn(kept['annotations'], lastApplied)) {
    const { [lastApplied]: _, ...annotations } = kept['annotations'];
    if (Object.keys(annotations).length > 0) kept['annotations'] = annotations;
    else delete kept['annotations'];
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

// causesOf are the causes of a refusal, each once. A cause without a field is written with the field <nil> by some
// servers.
export function causesOf(error: unknown): Cause[] {
  if (!(error instanceof Refused) || error.isConflictOfManagers) return [];
  const found = new Map<string, Cause>();
  for (const { field, message, reason } of error.causes) {
    const named = field && field !== '<nil>' ? field : undefined;
    const text = (message ?? reason ?? '').replace(/^<nil>: /, '').replace(/^Invalid value: (null|<nil>): /, '');
    found.set(`${named}\n${text}`, { ...(named ? { field: named } : {}), message: text, ...(reason ? { reason } : {}) });
  }
  return [...found.values()];
}

export function causesAt(causes: Cause[], path: Path): Cause[] {
  return causes.filter((c) => c.field && same(pathOfField(c.field), path));
}
