// What a schema has to say about YAML: what fits at a place, what is documented there, and what does not fit.

import { type Resolve, type Schema, shapeOf } from './openapi';
import { isObj, own, type Path } from './values';

export interface Typed {
  schema: Schema;
  resolve: Resolve;
}

// A step is a field, or - for the items of a list.
type Place = string[];

interface Token {
  column: number;
  step: string;
}

// tokensOf are the dashes and the key that a line begins with.
function tokensOf(line: string): Token[] {
  const found: Token[] = [];
  let column = /^ */.exec(line)![0].length;
  let dash: RegExpExecArray | null;
  while ((dash = /^-( +|$)/.exec(line.slice(column)))) {
    found.push({ column, step: '-' });
    column += dash[0].length;
  }
  const key = /^(?:"([^"]*)"|'([^']*)'|([^\s#'"[\]{},&*!|>%@`-][^:#]*|-[^\s:][^:#]*))\s*:(?:\s|$)/.exec(line.slice(column));
  if (key) found.push({ column, step: (key[1] ?? key[2] ?? key[3] ?? '').trim() });
  return found;
}

const block = /[|>][+-]?\d*\s*(#.*)?$/;

// above finds what a column of a line is in, by what is indented less before it; undefined within a text.
function above(lineAt: (n: number) => string, n: number, column: number, isDash: boolean): Place | undefined {
  const place: Place = [];
  for (let i = n - 1; i >= 1 && (column > 0 || isDash); i--) {
    const line = lineAt(i);
    if (!line.trim() || line.trimStart().startsWith('#')) continue;
    if (/^(---|\.\.\.)/.test(line)) break;
    const tokens = tokensOf(line);
    for (let k = tokens.length - 1; k >= 0; k--) {
      const t = tokens[k]!;
      // A list may begin where its key does.
      if (t.column < column || (t.column === column && isDash && t.step !== '-')) {
        if (t.step !== '-' && k === tokens.length - 1 && block.test(line)) return undefined;
        place.unshift(t.step);
        column = t.column;
        isDash = t.step === '-';
      }
    }
  }
  return place;
}

export function schemaAt({ schema, resolve }: Typed, place: Place): Schema | undefined {
  let s: Schema | undefined = resolve(schema);
  for (const step of place) {
    if (!s) return undefined;
    if (step === '-') s = s.items && resolve(s.items);
    else {
      const inner: Schema | undefined = own(s.properties, step) as Schema | undefined;
      s = inner ? resolve(inner) : typeof s.additionalProperties === 'object' ? resolve(s.additionalProperties) : undefined;
    }
  }
  return s;
}

export function typeOf(s: Schema, resolve: Resolve): string {
  const shape = shapeOf(s);
  if (shape === 'list') return `list of ${typeOf(resolve(s.items), resolve)}`;
  if (shape === 'intOrString') return 'number or text';
  return s.format && shape === 'string' ? s.format : shape;
}

export interface Offer {
  label: string;
  type: string;
  detail: string;
  about: string;
  insert: string;
}

// What the server sees to is not offered.
const kept = new Set(['status', 'managedFields', 'uid', 'resourceVersion', 'generation', 'creationTimestamp', 'deletionTimestamp', 'deletionGracePeriodSeconds', 'selfLink']);

// offersAt are what can be written at a column of a line, and where the word begins that they replace.
export function offersAt(typed: Typed, lineAt: (n: number) => string, lines: number, n: number, column: number): { from: number; offers: Offer[] } | undefined {
  const before = lineAt(n).slice(0, column);
  const asKey = /^( *(?:- +)*)([^\s:#]*)$/.exec(before);
  if (asKey) {
    const [, lead = '', word = ''] = asKey;
    const dashes = tokensOf(lead);
    const outer = above(lineAt, n, dashes[0]?.column ?? lead.length, dashes.length > 0);
    if (!outer) return undefined;
    const s = schemaAt(typed, [...outer, ...dashes.map(() => '-')]);
    if (!s) return undefined;
    const from = column - word.length;
    const shape = shapeOf(s);
    if (shape !== 'object') return { from, offers: valuesOf(s, typed.resolve, shape === 'list' && s.items ? '- ' : '') };
    const there = siblings(lineAt, lines, n, lead.length);
    const inner = ' '.repeat(lead.length + 2);
    const required = new Set(s.required ?? []);
    return {
      from,
      offers: Object.entries(s.properties ?? {})
        .filter(([name]) => !there.has(name) && !kept.has(name))
        .map(([name, raw]) => {
          const p = typed.resolve(raw);
          const ending = { object: `:\n${inner}`, map: `:\n${inner}`, list: `:\n${inner}- ` }[shapeOf(p) as string] ?? ': ';
          return { label: name, type: required.has(name) ? 'keyword' : 'property', detail: typeOf(p, typed.resolve) + (required.has(name) ? ', required' : ''), about: p.description ?? '', insert: name + ending };
        }),
    };
  }
  const asValue = /^( *(?:- +)*)([^\s:#][^:#]*):\s+([^\s]*)$/.exec(before);
  if (!asValue) return undefined;
  const place = placeAt(lineAt, n);
  const s = place && schemaAt(typed, place);
  return s && { from: column - asValue[3]!.length, offers: valuesOf(s, typed.resolve, '') };
}

function valuesOf(s: Schema, resolve: Resolve, lead: string): Offer[] {
  const of = lead ? resolve(s.items) : s;
  const about = of.description ?? '';
  const one = (value: unknown, detail: string): Offer => ({ label: lead + String(value), type: 'enum', detail, about, insert: lead + (typeof value === 'string' && /^(|true|false|null|[\d.+-].*|.*[:#{}[\],&*!|>'"%@`].*)$/.test(value) ? JSON.stringify(value) : String(value)) });
  const values: unknown[] = shapeOf(of) === 'enum' ? of.enum! : shapeOf(of) === 'boolean' ? [true, false] : [];
  const offers = values.map((v) => one(v, v === of.default ? 'default' : ''));
  if (values.length === 0 && of.default !== undefined && typeof of.default !== 'object') offers.push(one(of.default, 'default'));
  return offers;
}

// siblings are the keys of the map that a line is in.
function siblings(lineAt: (n: number) => string, lines: number, n: number, column: number): Set<string> {
  const found = new Set<string>();
  const look = (i: number): boolean => {
    const line = lineAt(i);
    if (!line.trim()) return true;
    const tokens = tokensOf(line);
    const key = tokens.at(-1);
    if (key && key.step !== '-' && key.column === column) found.add(key.step);
    return /^ */.exec(line)![0].length >= column;
  };
  // A dash begins the map, and the first line that is indented less ends it.
  for (let i = n; i >= 1 && (i === n || look(i)) && !(tokensOf(lineAt(i))[0]?.step === '-' && tokensOf(lineAt(i))[0]!.column < column); i--);
  for (let i = n + 1; i <= lines && look(i) && !(tokensOf(lineAt(i))[0]?.step === '-' && tokensOf(lineAt(i))[0]!.column < column); i++);
  return found;
}

// placeAt is where the key of a line is.
export function placeAt(lineAt: (n: number) => string, n: number): Place | undefined {
  const tokens = tokensOf(lineAt(n));
  if (tokens.length === 0) return undefined;
  const outer = above(lineAt, n, tokens[0]!.column, tokens[0]!.step === '-');
  return outer && [...outer, ...tokens.map((t) => t.step)];
}

export interface Mismatch {
  path: Path;
  message: string;
}

const most = 100;

// mismatches are where an object does not fit a schema. The server has the last word; it knows more rules.
export function mismatches({ schema, resolve }: Typed, object: unknown): Mismatch[] {
  const found: Mismatch[] = [];
  const add = (path: Path, message: string) => void (found.length < most && found.push({ path, message }));
  const walk = (raw: Schema, value: unknown, path: Path): void => {
    if (found.length >= most || value === undefined || value === null || path.length > 40) return;
    const s = resolve(raw);
    if (s.oneOf || s.anyOf || s['x-kubernetes-int-or-string']) return;
    const is = Array.isArray(value) ? 'array' : typeof value;
    const fits = !s.type || s.type === is || (s.type === 'integer' && Number.isInteger(value)) || (s.type === 'number' && is === 'number');
    if (!fits) return add(path, `it has to be ${s.type === 'array' ? 'a list' : s.type === 'object' ? 'a map' : `of the type ${s.type}`}`);
    if (s.enum?.length && !s.enum.includes(value)) return add(path, `it has to be one of ${s.enum.map(String).join(', ')}`);
    if (typeof value === 'number' && s.minimum !== undefined && value < s.minimum) add(path, `it has to be at least ${s.minimum}`);
    if (typeof value === 'number' && s.maximum !== undefined && value > s.maximum) add(path, `it has to be at most ${s.maximum}`);
    if (Array.isArray(value) && s.items) value.forEach((v, i) => walk(s.items!, v, [...path, i]));
    if (!isObj(value)) return;
    for (const name of s.required ?? []) if (!Object.hasOwn(value, name)) add(path, `${name} is required`);
    const open = s['x-kubernetes-preserve-unknown-fields'] || s.additionalProperties === true || !s.properties;
    for (const [name, v] of Object.entries(value)) {
      const inner = (own(s.properties, name) as Schema | undefined) ?? (typeof s.additionalProperties === 'object' ? s.additionalProperties : undefined);
      if (inner) walk(inner, v, [...path, name]);
      else if (!open) add([...path, name], 'there is no such field');
    }
  };
  walk(schema, object, []);
  return found;
}
