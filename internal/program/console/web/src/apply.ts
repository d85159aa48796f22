// How an edit is written: by server-side apply of the changed fields, in the name of the signed-in user, on
// condition that the object is still the one that was compared.

import { type ManagedFields, type Json, type Obj, Refused, request, type Resource } from './api';
import type { Described } from './copyas';
import { isItem, type Item, keyOf, type Step, written } from './diff';
import { apiVersion, type Kind, pathOf } from './discovery';
import { editable, isObj, own, same, set } from './values';

const prefix = 'annex-console';
const longest = 128; // bytes that the server permits a field manager

// managerOf is the field manager of a user. Names that do not fit are cut, and told apart by a hash.
export function managerOf(user: string): string {
  const whole = `${prefix}:${user.replace(/[^\p{L}\p{M}\p{N}\p{P}\p{S} ]/gu, '?')}`;
  const bytes = (t: string) => new TextEncoder().encode(t).length;
  if (whole === `${prefix}:${user}` && bytes(whole) <= longest) return whole;
  let hash = 0xcbf29ce484222325n; // FNV-1a
  for (const byte of new TextEncoder().encode(user)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  const tail = '~' + hash.toString(16).padStart(16, '0');
  let head = [...whole];
  while (bytes(head.join('')) + tail.length > longest) head = head.slice(0, -1);
  return head.join('') + tail;
}

// nameOf is how people know a manager.
export function nameOf(manager: string): string {
  return manager.startsWith(prefix + ':') ? `${manager.slice(prefix.length + 1)} (in the console)` : manager;
}

// byHand are managers that do nothing by themselves: what people use. The console had one for all of its users.
export function byHand(manager: string): boolean {
  return manager === prefix || /^kubectl($|-)/.test(manager) || manager === 'before-first-apply';
}

// An edit of the fields of an object: what is set and changed, and which paths are gone.
interface Difference {
  set: Obj;
  gone: Step[][];
}

// keysIn are the fields by which the server tells the items of a list apart. Managed fields show them; a list
// without them is one value.
type Keys = (path: Step[]) => string[] | undefined;

function keysIn(object: Resource): Keys {
  return (path) => {
    for (const entry of object.metadata.managedFields ?? []) {
      const fields = fieldsAt(entry.fieldsV1, path);
      const item = fields && Object.keys(fields).find((f) => f.startsWith('k:'));
      if (item) return Object.keys(JSON.parse(item.slice(2)) as object);
    }
    return undefined;
  };
}

// fieldsAt descends in the fields of a manager; undefined if it does not manage them.
function fieldsAt(fields: Obj | undefined, path: Step[]): Obj | undefined {
  let at: Obj | undefined = fields;
  for (const step of path) {
    if (!at) return undefined;
    if (isItem(step)) {
      const name = Object.keys(at).find((f) => f.startsWith('k:') && fits(JSON.parse(f.slice(2)) as Obj, step));
      at = name === undefined ? undefined : (at[name] as Obj);
    } else if (typeof step === 'number') return undefined;
    else at = own(at, 'f:' + step) as Obj | undefined;
  }
  return at;
}

function fits(keys: Obj, item: Item): boolean {
  return Object.entries(item.keys).every(([k, v]) => same(keys[k], v));
}

// manages says whether a manager has a field: by its path, by what is in it, or by a list that is one value.
export function manages(entry: ManagedFields, path: Step[]): boolean {
  let at = entry.fieldsV1;
  for (const step of path) {
    if (!at) return false;
    if (Object.keys(at).length === 0) return true;
    if (typeof step === 'number') return Object.keys(at).some((f) => f !== '.');
    at = fieldsAt(at, [step]);
  }
  return at !== undefined;
}

// difference finds what an edit sets and what it takes away. Items of lists that the server merges are named by
// their keys; without keys lists count as a whole.
export function difference(before: unknown, after: unknown, keys: Keys): Difference {
  const gone: Step[][] = [];
  const walk = (a: Obj, b: Obj, path: Step[]): Obj => {
    const changed: Obj = {};
    for (const [name, value] of Object.entries(b)) {
      const old = own(a, name);
      const at = [...path, name];
      if (same(old, value)) continue;
      if (isObj(old) && isObj(value)) {
        const inner = walk(old, value, at);
        if (Object.keys(inner).length > 0) set(changed, name, inner);
        continue;
      }
      const named = Array.isArray(old) && Array.isArray(value) ? keys(at) : undefined;
      const items = named && list(old as Json[], value as Json[], named, at);
      if (!items) set(changed, name, value);
      else if (items.length > 0) set(changed, name, items);
    }
    for (const name of Object.keys(a)) if (!Object.hasOwn(b, name)) gone.push([...path, name]);
    return changed;
  };
  const list = (a: Json[], b: Json[], named: string[], path: Step[]): Json[] | undefined => {
    if (![...a, ...b].every((item) => isObj(item) && named.some((k) => Object.hasOwn(item, k)))) return undefined;
    const keyed = (item: Obj): Item => ({ keys: Object.fromEntries(named.filter((k) => Object.hasOwn(item, k)).map((k) => [k, item[k]])) });
    const id = (item: Json) => JSON.stringify(keyed(item as Obj).keys);
    const old = new Map(a.map((item) => [id(item), item as Obj]));
    const now = new Set(b.map(id));
    if (old.size !== a.length || now.size !== b.length) return undefined;
    for (const item of a) if (!now.has(id(item))) gone.push([...path, keyed(item as Obj)]);
    const kept = (all: Json[], in_: { has: (id: string) => boolean }) => all.map(id).filter((i) => in_.has(i));
    if (!same(kept(a, now), kept(b, old))) return undefined; // an order is that of the whole
    return b.flatMap((item) => {
      const before_ = old.get(id(item));
      if (!before_) return [item];
      const inner = walk(before_, item as Obj, [...path, keyed(item as Obj)]);
      return Object.keys(inner).length > 0 ? [{ ...(keyed(item as Obj).keys as Obj), ...inner }] : [];
    });
  };
  return { set: walk(isObj(before) ? before : {}, isObj(after) ? after : {}, []), gone };
}

// owned picks out of an object what a manager has applied before, so that applying anew does not give it up.
export function owned(object: Resource, manager: string, gone: Step[][] = []): Obj {
  const entry = object.metadata.managedFields?.find((m) => m.manager === manager && m.operation === 'Apply' && !m.subresource);
  const isGone = (path: Step[]) => gone.some((g) => same(g, path));
  const pick = (fields: Obj, value: unknown, path: Step[]): Json | undefined => {
    const parts = Object.keys(fields).filter((f) => f !== '.');
    if (Array.isArray(value) && parts.some((f) => f.startsWith('k:'))) {
      const items: Json[] = [];
      for (const f of parts.filter((p) => p.startsWith('k:'))) {
        const keys = JSON.parse(f.slice(2)) as Obj;
        const item = value.find((v) => isObj(v) && Object.entries(keys).every(([k, w]) => same(v[k], w))) as Obj | undefined;
        const at = [...path, { keys }];
        if (item && !isGone(at)) items.push({ ...keys, ...(pick(fields[f] as Obj, item, at) as Obj) });
      }
      return items;
    }
    if (Array.isArray(value) && parts.some((f) => f.startsWith('v:'))) return value.filter((v) => parts.some((f) => f.startsWith('v:') && same(JSON.parse(f.slice(2)), v))) as Json[];
    if (!isObj(value) || parts.length === 0) return value as Json | undefined;
    const picked: Obj = {};
    for (const f of parts.filter((p) => p.startsWith('f:'))) {
      const name = f.slice(2);
      if (!Object.hasOwn(value, name) || isGone([...path, name])) continue;
      const inner = pick(fields[f] as Obj, value[name], [...path, name]);
      if (inner !== undefined) set(picked, name, inner);
    }
    return picked;
  };
  return entry?.fieldsV1 ? (pick(entry.fieldsV1, object, []) as Obj) : {};
}

// merged lays one object over another. Items of lists are matched by a field that tells them apart if the server
// matches them too.
function merged(under: Obj, over: Obj, keys: Keys, path: Step[] = []): Obj {
  const all: Obj = { ...under };
  for (const [name, value] of Object.entries(over)) {
    const old = own(all, name) as Json | undefined;
    const at = [...path, name];
    if (isObj(old) && isObj(value)) set(all, name, merged(old, value, keys, at));
    else if (Array.isArray(old) && Array.isArray(value) && keys(at)) {
      const named = keys(at)!;
      const id = (item: Json) => JSON.stringify(named.map((k) => own(item, k) ?? null));
      const rest = new Map(value.map((item) => [id(item), item]));
      const both = old.map((item) => {
        const other = rest.get(id(item));
        rest.delete(id(item));
        return isObj(item) && isObj(other) ? merged(item, other, keys, [...at, { keys: {} }]) : (other ?? item);
      });
      set(all, name, [...both, ...rest.values()]);
    } else set(all, name, value);
  }
  return all;
}

// A Write is a request that carries out an edit.
export interface Write {
  apply: boolean;
  body: Obj;
}

// applied is the edit as an apply; undefined if it takes away what other managers have too, which an apply leaves.
function applied(kind: Kind, theirs: Resource, wanted: Obj, manager: string): Write | undefined {
  const keys = keysIn(theirs);
  const { set: changed, gone } = difference(editable(theirs), wanted, keys);
  const entries = theirs.metadata.managedFields ?? [];
  const mine = entries.find((m) => m.manager === manager && m.operation === 'Apply' && !m.subresource);
  if (gone.some((g) => !mine || !manages(mine, g) || entries.some((m) => m !== mine && manages(m, g)))) return undefined;
  const { name, namespace, resourceVersion } = theirs.metadata;
  const identity: Obj = { apiVersion: apiVersion(kind), kind: kind.kind, metadata: { name, ...(namespace ? { namespace } : {}), resourceVersion: resourceVersion ?? '' } };
  return { apply: true, body: merged(merged(owned(theirs, manager, gone), changed, keys), identity, keys) };
}

// patched is the edit as a merge patch, which replaces lists and can take away what others have set.
function patched(theirs: Resource, wanted: Obj): Write {
  const { set: changed, gone } = difference(editable(theirs), wanted, () => undefined);
  let body: Obj = { ...changed, metadata: { ...(isObj(changed['metadata']) ? changed['metadata'] : {}), resourceVersion: theirs.metadata.resourceVersion ?? '' } };
  for (const path of gone) body = nulled(body, path as string[]);
  return { apply: false, body };
}

function nulled(object: Obj, path: string[]): Obj {
  const [step, ...rest] = path as [string, ...string[]];
  const inner = own(object, step);
  const copy = { ...object };
  set(copy, step, rest.length === 0 ? null : nulled(isObj(inner) ? inner : {}, rest));
  return copy;
}

const parametersOf = (write: Write, manager: string, how: { dryRun: boolean; force: boolean }): Record<string, string> => ({
  fieldManager: manager,
  fieldValidation: 'Strict',
  ...(how.dryRun ? { dryRun: 'All' } : {}),
  ...(write.apply && how.force ? { force: 'true' } : {}),
});
const typeOf = (write: Write) => (write.apply ? 'application/apply-patch+yaml' : 'application/merge-patch+json');

export async function send(kind: Kind, object: Resource, write: Write, manager: string, how: { dryRun: boolean; force: boolean }): Promise<Resource> {
  const { name, namespace } = object.metadata;
  const response = await request(pathOf(kind, namespace, name, undefined, parametersOf(write, manager, how)), { method: 'PATCH', contentType: typeOf(write), body: JSON.stringify(write.body) });
  return (await response.json()) as Resource;
}

// describedWrite is a write as others may send it.
export function describedWrite(kind: Kind, object: Resource, write: Write, manager: string, force: boolean): Described {
  const { name, namespace = '' } = object.metadata;
  const query = Object.entries(parametersOf(write, manager, { dryRun: false, force }));
  return { method: 'PATCH', path: pathOf(kind, namespace, name), query, contentType: typeOf(write), body: write.body, of: { kind, namespace, name, verb: write.apply ? 'apply' : 'patch' } };
}

// left says whether something that an edit takes away is still there after an apply, as items are that others have
// set too.
function left(before: unknown, wanted: unknown, after: unknown): boolean {
  if (isObj(wanted) && isObj(after)) return Object.keys(after).some((name) => (Object.hasOwn(wanted, name) ? left(own(before, name), wanted[name], after[name]) : own(before, name) !== undefined));
  if (!Array.isArray(wanted) || !Array.isArray(after) || same(wanted, before)) return false;
  if (after.length !== wanted.length) return true;
  const lists = [wanted, after, ...(Array.isArray(before) ? [before] : [])];
  const key = keyOf(lists);
  return wanted.some((w, i) => {
    const old = !Array.isArray(before) ? undefined : key ? before.find((b) => same(own(b, key), own(w, key))) : before[i];
    return left(old, w, after[i]);
  });
}

export interface Preview {
  write: Write;
  after: Resource; // as the server would store it
  unseen?: boolean; // the server could not try it, so that after is what was asked for
  others: { manager: string; fields: string[] }[]; // who has the changed fields too
  force: boolean; // an apply would be refused: for others, or for what the user has written without an apply
}

// preview tries an edit without storing it. Validation comes first: an apply that is not forced would name other
// managers before it validates.
export async function preview(kind: Kind, theirs: Resource, wanted: Obj, manager: string): Promise<Preview> {
  const attempt = async (write: Write) => {
    try {
      return { after: await send(kind, theirs, write, manager, { dryRun: true, force: true }), unseen: false };
    } catch (error) {
      // A webhook with side effects forbids trying.
      if (error instanceof Refused && error.code === 400 && /dry ?run/i.test(error.message)) return { after: { ...theirs, ...wanted, metadata: { ...theirs.metadata, ...(wanted['metadata'] as object) } } as Resource, unseen: true };
      throw error;
    }
  };
  let write = applied(kind, theirs, wanted, manager);
  let tried = write && (await attempt(write));
  if (!write || !tried || left(editable(theirs), wanted, editable(tried.after))) {
    write = patched(theirs, wanted);
    tried = await attempt(write);
  }
  const found = write.apply && !tried.unseen ? await conflicts(kind, theirs, write, manager) : { others: havers(theirs, wanted, manager), force: true };
  return { write, after: tried.after, ...found, ...(tried.unseen ? { unseen: true } : {}) };
}

// conflicts asks the server who else has applied what an apply changes.
async function conflicts(kind: Kind, theirs: Resource, write: Write, manager: string): Promise<Pick<Preview, 'others' | 'force'>> {
  try {
    await send(kind, theirs, write, manager, { dryRun: true, force: false });
    return { others: [], force: false };
  } catch (error) {
    if (!(error instanceof Refused) || !error.isConflictOfManagers) throw error;
    const by = new Map<string, string[]>();
    for (const { field, message } of error.causes) {
      const who = /conflict with "((?:[^"\\]|\\.)*)"/.exec(message ?? '')?.[1] ?? message ?? '';
      if (who !== manager) by.set(who, [...(by.get(who) ?? []), (field ?? '').replace(/^\./, '')]);
    }
    return { others: [...by].map(([m, fields]) => ({ manager: m, fields })), force: true };
  }
}

// havers are the managers of what a patch changes, which no server refuses.
function havers(theirs: Resource, wanted: Obj, manager: string): Preview['others'] {
  const keys = keysIn(theirs);
  const { set: changed, gone } = difference(editable(theirs), wanted, keys);
  const paths = [...gone, ...leaves(changed, keys)];
  const by = new Map<string, Set<string>>();
  for (const entry of theirs.metadata.managedFields ?? []) {
    if (entry.manager === manager || entry.subresource) continue;
    for (const path of paths) if (manages(entry, path)) by.set(entry.manager, (by.get(entry.manager) ?? new Set()).add(written(path)));
  }
  return [...by].map(([m, fields]) => ({ manager: m, fields: [...fields] }));
}

function leaves(value: unknown, keys: Keys, path: Step[] = []): Step[][] {
  if (isObj(value) && Object.keys(value).length > 0) return Object.entries(value).flatMap(([name, v]) => leaves(v, keys, [...path, name]));
  const named = Array.isArray(value) ? keys(path) : undefined;
  if (named)
    return (value as Obj[]).flatMap((item) => {
      const at = [...path, { keys: Object.fromEntries(named.map((k) => [k, item[k]])) }];
      const rest = Object.fromEntries(Object.entries(item).filter(([k]) => !named.includes(k)));
      return Object.keys(rest).length > 0 ? leaves(rest, keys, at) : [at];
    });
  return [path];
}
