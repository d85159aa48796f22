// A document that is edited, as text and as a form: YAML, and the object that it is. What the form changes is
// written into the text where it is, so that comments and the order of the rest stay.

import { isAlias, isCollection, isMap, isScalar, isSeq, LineCounter, type Node, parse, parseDocument, stringify, visit, type Document as Yaml } from 'yaml';
import { type Obj } from './api';
import { isObj, type Path, same } from './values';

export interface Doc {
  text: string;
  object: Obj; // of the last text that was one
  error?: string; // what is wrong with the text
  ahead?: 'text' | 'object'; // what has changed while the other has not followed yet
}

export function textOf(object: unknown): string {
  return stringify(object, { lineWidth: 0, aliasDuplicateObjects: false });
}

// docOf is a document of an object. Its text is written when it is wanted.
export function docOf(object: Obj): Doc {
  return { text: '', object, ahead: 'object' };
}

// typed is a document with another text, which is read when it is settled: reading takes long if it is large.
export function typed(doc: Doc, text: string): Doc {
  return { text, object: doc.object, ahead: 'text' };
}

// filled is a document with another object.
export function filled(doc: Doc, object: Obj): Doc {
  return { text: doc.text, object, ahead: 'object' };
}

// settled is a document whose text and object are the same again.
export function settled(doc: Doc): Doc {
  if (doc.ahead === 'object') return { text: rewritten(doc.text, doc.object), object: doc.object };
  if (doc.ahead !== 'text') return doc;
  try {
    const object: unknown = parse(doc.text, { maxAliasCount: 100 });
    if (!isObj(object)) return { text: doc.text, object: doc.object, error: 'an object is a map: apiVersion, kind, metadata …' };
    return { text: doc.text, object };
  } catch (error) {
    return { text: doc.text, object: doc.object, error: error instanceof Error ? error.message : String(error) };
  }
}

// rewritten is the text with what differs from the object replaced.
export function rewritten(text: string, object: Obj): string {
  if (!text) return textOf(object);
  let document: Yaml;
  try {
    document = parseDocument(text, { maxAliasCount: 100 } as object);
    if (document.errors.length > 0 || !isMap(document.contents)) return textOf(object);
    // What an anchor names is in several places, of which one may have changed.
    let aliases = false;
    visit(document, { Alias: () => ((aliases = true), visit.BREAK) });
    if (aliases) return textOf(object);
    write(document, document.contents, object);
    const result = document.toString({ lineWidth: 0 });
    return same(parse(result), object) ? result : textOf(object);
  } catch {
    return textOf(object);
  }
}

// write makes a node have a value, or answers false if it cannot.
function write(document: Yaml, node: unknown, value: unknown): boolean {
  if (isScalar(node) && (value === null || typeof value !== 'object')) {
    if (node.value === value) return true;
    node.value = value;
    delete node.source;
    delete node.format;
    if (typeof value !== 'string' || !value.includes('\n')) delete node.type;
    return true;
  }
  if (isMap(node) && isObj(value)) {
    for (const pair of [...node.items]) {
      const name = isScalar(pair.key) ? String(pair.key.value) : '';
      if (!Object.hasOwn(value, name)) node.delete(pair.key);
    }
    for (const [name, inner] of Object.entries(value)) {
      const pair = node.items.find((p) => isScalar(p.key) && String(p.key.value) === name);
      if (!pair) node.add(document.createPair(name, inner));
      else if (!write(document, pair.value, inner)) pair.value = made(document, inner, pair.value);
    }
    return true;
  }
  if (isSeq(node) && Array.isArray(value)) {
    const old = node.items.map((item) => (item as Node).toJS(document) as unknown);
    let start = 0;
    while (start < old.length && start < value.length && same(old[start], value[start])) start++;
    let end = 0;
    while (end < old.length - start && end < value.length - start && same(old[old.length - 1 - end], value[value.length - 1 - end])) end++;
    const [gone, come] = [old.length - start - end, value.length - start - end];
    for (let i = start; i < start + Math.min(gone, come); i++) if (!write(document, node.items[i], value[i])) node.items[i] = made(document, value[i], node.items[i]);
    if (gone > come) node.items.splice(start + come, gone - come);
    if (come > gone) node.items.splice(start + gone, 0, ...value.slice(start + gone, start + come).map((v) => document.createNode(v) as Node));
    // What was [] is written as a block when it has items.
    if (old.length === 0) node.flow = false;
    return true;
  }
  return false;
}

function made(document: Yaml, value: unknown, old: unknown): Node {
  const node = document.createNode(value) as Node;
  if (isScalar(old) || isCollection(old) || isAlias(old)) {
    if (old.comment) node.comment = old.comment;
    if (old.commentBefore) node.commentBefore = old.commentBefore;
  }
  return node;
}

// rangeOf finds where in a text a path is, or the deepest part of it that is there: of its key, or of its item.
export function rangesOf(text: string, paths: Path[]): ({ from: number; to: number; line: number } | undefined)[] {
  const counter = new LineCounter();
  let contents: unknown;
  try {
    contents = parseDocument(text, { lineCounter: counter }).contents;
  } catch {
    return paths.map(() => undefined);
  }
  return paths.map((path) => {
    let node = contents;
    let range: [number, number] | undefined;
    for (const step of path) {
      if (isMap(node)) {
        const pair = node.items.find((p) => isScalar(p.key) && String(p.key.value) === String(step));
        if (!pair) break;
        const at = (pair.key as { range?: [number, number, number] }).range;
        if (at) range = [at[0], at[1]];
        node = pair.value;
      } else if (isSeq(node)) {
        node = node.items[Number(step)];
        if (!node) break;
        const at = (node as { range?: [number, number, number] }).range;
        if (at) range = [at[0], isScalar(node) ? at[1] : Math.min(at[1], at[0] + 1)];
      } else break;
    }
    return range && { from: range[0], to: range[1], line: counter.linePos(range[0]).line };
  });
}

