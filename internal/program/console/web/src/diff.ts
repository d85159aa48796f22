// What differs between two objects, field by field, and how two edits of one object are merged.

import { isObj, own, same, set } from './values';

// An item of a list is named by the values of its keys where it has some, and by its number otherwise.
export type Item = { readonly keys: Readonly<Record<string, unknown>> };
export type Step = string | number | Item;

export interface Change {
  path: Step[];
  from: unknown; // undefined if it was not there
  to: unknown; // undefined if it is not there any more
}

export function isItem(step: Step): step is Item {
  return typeof step === 'object';
}

// written is a path as people and the server write it: spec.containers[name=web].image, metadata.labels[a.b/c].
export function written(path: Step[]): string {
  let text = '';
  for (const step of path) {
    if (isItem(step)) text += '[' + Object.entries(step.keys).map(([k, v]) => `${k}=${String(v)}`).join(',') + ']';
    else if (typeof step === 'number') text += `[${step}]`;
    else if (/^[\w-]+$/.test(step)) text += (text && '.') + step;
    else text += `[${step}]`;
  }
  return text;
}

const names = ['name', 'key', 'id', 'type', 'port', 'containerPort', 'mountPath', 'host', 'ip'];

// keyOf finds a field by which the items of lists can be told apart: each has it, and no two of a list have the same.
export function keyOf(lists: unknown[][]): string | undefined {
  if (lists.every((l) => l.length === 0)) return undefined;
  return names.find((name) =>
    lists.every((list) => {
      const seen = new Set<unknown>();
      for (const item of list) {
        const value = isObj(item) ? own(item, name) : undefined;
        if ((typeof value !== 'string' && typeof value !== 'number') || seen.has(value)) return false;
        seen.add(value);
      }
      return true;
    }),
  );
}

function byKey(list: unknown[], key: string): Map<unknown, unknown> {
  return new Map(list.map((item) => [own(item, key), item]));
}

// changes lists the fields that differ, each as deep as it is named.
export function changes(from: unknown, to: unknown, path: Step[] = []): Change[] {
  if (same(from, to)) return [];
  if (isObj(from) && isObj(to)) {
    const all = [...new Set([...Object.keys(from), ...Object.keys(to)])];
    return all.flatMap((name) => changes(own(from, name), own(to, name), [...path, name]));
  }
  if (Array.isArray(from) && Array.isArray(to)) {
    const key = keyOf([from, to]);
    if (key) {
      const [a, b] = [byKey(from, key), byKey(to, key)];
      const found = [...new Set([...a.keys(), ...b.keys()])].flatMap((k) => changes(a.get(k), b.get(k), [...path, { keys: { [key]: k } }]));
      return found.length > 0 ? found : [{ path, from, to }]; // in another order
    }
    if (from.length === to.length) return from.flatMap((v, i) => changes(v, to[i], [...path, i]));
  }
  return [{ path, from, to }];
}

// One field that two edits have changed differently.
export interface Clash {
  path: Step[];
  id: string;
  base: unknown;
  theirs: unknown;
  mine: unknown;
}
export type Choices = ReadonlyMap<string, 'theirs' | 'mine'>;

// merge lays the changes from base to mine over theirs. Fields that both changed differently are clashes, and are
// theirs unless chosen otherwise.
export function merge(base: unknown, theirs: unknown, mine: unknown, choices: Choices): { value: unknown; clashes: Clash[] } {
  const clashes: Clash[] = [];
  const walk = (b: unknown, t: unknown, m: unknown, path: Step[]): unknown => {
    if (same(m, b) || same(m, t)) return t;
    if (same(t, b)) return m;
    if (isObj(t) && isObj(m) && (isObj(b) || b === undefined)) {
      const merged: Record<string, unknown> = {};
      for (const name of new Set([...Object.keys(t), ...Object.keys(m)])) {
        const value = walk(own(b, name), own(t, name), own(m, name), [...path, name]);
        if (value !== undefined) set(merged, name, value);
      }
      return merged;
    }
    if (Array.isArray(t) && Array.isArray(m) && (Array.isArray(b) || b === undefined)) {
      const old = (b ?? []) as unknown[];
      const key = keyOf([old, t, m]);
      if (key) return items(byKey(old, key), byKey(t, key), byKey(m, key), key, path);
    }
    const id = written(path);
    clashes.push({ path, id, base: b, theirs: t, mine: m });
    return choices.get(id) === 'mine' ? m : t;
  };
  const items = (b: Map<unknown, unknown>, t: Map<unknown, unknown>, m: Map<unknown, unknown>, key: string, path: Step[]): unknown[] => {
    // Who has moved items gives the order; items that only the other has come last.
    const kept = [...b.keys()].filter((k) => m.has(k));
    const moved = !same(kept, [...m.keys()].filter((k) => b.has(k)));
    const order = moved ? [...new Set([...m.keys(), ...t.keys()])] : [...new Set([...t.keys(), ...m.keys()])];
    return order.map((k) => walk(b.get(k), t.get(k), m.get(k), [...path, { keys: { [key]: k } }])).filter((v) => v !== undefined);
  };
  return { value: walk(base, theirs, mine, []), clashes };
}

// lines compares texts line by line; it is given up for what is too long to compare in a moment.
export function lines(from: string, to: string): { sign: ' ' | '-' | '+'; text: string }[] {
  const a = from.split('\n');
  const b = to.split('\n');
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const [x, y] = [a.slice(start, a.length - end), b.slice(start, b.length - end)];
  const middle: { sign: ' ' | '-' | '+'; text: string }[] = [];
  if (x.length * y.length > 1_000_000) {
    middle.push(...x.map((text) => ({ sign: '-' as const, text })), ...y.map((text) => ({ sign: '+' as const, text })));
  } else {
    // The longest common subsequence of the middle.
    const wide = y.length + 1;
    const table = new Uint32Array((x.length + 1) * wide);
    for (let i = x.length - 1; i >= 0; i--)
      for (let j = y.length - 1; j >= 0; j--)
        table[i * wide + j] = x[i] === y[j] ? table[(i + 1) * wide + j + 1]! + 1 : Math.max(table[(i + 1) * wide + j]!, table[i * wide + j + 1]!);
    let [i, j] = [0, 0];
    while (i < x.length || j < y.length) {
      if (i < x.length && j < y.length && x[i] === y[j]) middle.push({ sign: ' ', text: x[i++]! }), j++;
      else if (i < x.length && (j === y.length || table[(i + 1) * wide + j]! >= table[i * wide + j + 1]!)) middle.push({ sign: '-', text: x[i++]! });
      else middle.push({ sign: '+', text: y[j++]! });
    }
  }
  // Three lines of context, as in any patch.
  const before = a.slice(Math.max(0, start - 3), start).map((text) => ({ sign: ' ' as const, text }));
  const after = a.slice(a.length - end, a.length - end + 3).map((text) => ({ sign: ' ' as const, text }));
  return [...before, ...middle, ...after];
}
