// An object being edited, as YAML or in a form; both show the same draft.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { isMap, isScalar, isSeq, LineCounter, parse, parseDocument, stringify } from 'yaml';
import { type Cause, type Obj } from './api';
import { ObjectForm } from './form';
import { schemaOf } from './openapi';
import { type Path, pathOfField } from './values';
import { Loading, useLoaded } from './widgets';

export interface Draft {
  object: Obj;
  error?: string; // what is wrong with the text, which then is not what object is
}

export function draftOf(text: string): Draft & { object: Obj } {
  try {
    const object: unknown = parse(text, { maxAliasCount: 100 });
    if (typeof object !== 'object' || object === null || Array.isArray(object)) return { object: {}, error: 'an object is a map: apiVersion, kind, metadata …' };
    return { object: object as Obj };
  } catch (error) {
    return { object: {}, error: error instanceof Error ? error.message : String(error) };
  }
}

export function textOf(object: unknown): string {
  return stringify(object, { lineWidth: 0, aliasDuplicateObjects: false });
}

export function Editor({ kind, object, change, causes, creating, mode, setMode }: {
  kind: { group: string; version: string; kind: string };
  object: Obj;
  change: (draft: Draft) => void;
  causes: Cause[];
  creating: boolean;
  mode: 'form' | 'yaml';
  setMode: (mode: 'form' | 'yaml') => void;
}) {
  const schema = useLoaded(() => schemaOf(kind), [kind.group, kind.version, kind.kind]);
  const [text, setText] = useState(() => textOf(object));
  const shown = useRef(object);
  // Another draft than the one that this text gave comes from the form, or from the server.
  useEffect(() => {
    if (shown.current !== object) setText(textOf(object));
    shown.current = object;
  }, [object]);
  const broken = useMemo(() => draftOf(text).error, [text]);
  return (
    <div class="editor">
      <div class="modes" role="group" aria-label="Edit as">
        <button type="button" aria-pressed={mode === 'form'} disabled={mode === 'yaml' && !!broken} onClick={() => setMode('form')}>
          Form
        </button>
        <button type="button" aria-pressed={mode === 'yaml'} onClick={() => setMode('yaml')}>
          YAML
        </button>
      </div>
      {mode === 'yaml' ? (
        <Yaml
          text={text}
          causes={causes}
          error={broken}
          set={(t) => {
            setText(t);
            const draft = draftOf(t);
            if (!draft.error) shown.current = draft.object;
            change(draft.error ? { object, error: draft.error } : draft);
          }}
        />
      ) : schema.value ? (
        <ObjectForm schema={schema.value.schema} resolve={schema.value.resolve} creating={creating} value={object} set={(value) => change({ object: value as Obj })} causes={causes} />
      ) : schema.error ? (
        <p class="quiet">There is no form: {String((schema.error as Error).message)}</p>
      ) : (
        <Loading what="the schema" />
      )}
    </div>
  );
}

// lineOf finds where in a text a path is, or the deepest part of it that is there; 0 if nothing is.
export function lineOf(text: string, path: Path): number {
  const counter = new LineCounter();
  let node: unknown;
  try {
    node = parseDocument(text, { lineCounter: counter }).contents;
  } catch {
    return 0;
  }
  let offset = -1;
  for (const step of path) {
    if (isMap(node)) {
      const pair = node.items.find((p) => isScalar(p.key) && String(p.key.value) === String(step));
      if (!pair) break;
      offset = (pair.key as { range?: [number, number, number] }).range?.[0] ?? offset;
      node = pair.value;
    } else if (isSeq(node)) {
      node = node.items[Number(step)];
      if (!node) break;
      offset = (node as { range?: [number, number, number] }).range?.[0] ?? offset;
    } else break;
  }
  return offset < 0 ? 0 : counter.linePos(offset).line;
}

function Yaml({ text, set, causes, error }: { text: string; set: (t: string) => void; causes: Cause[]; error: string | undefined }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const numbers = useRef<HTMLPreElement>(null);
  const where = causes.map((c) => ({ ...c, line: c.field ? lineOf(text, pathOfField(c.field)) : 0 }));
  const marked = new Set(where.map((c) => c.line));
  const count = text.split('\n').length;
  const jump = (line: number) => {
    const el = area.current;
    if (!el || !line) return;
    const all = text.split('\n');
    const start = all.slice(0, line - 1).reduce((n, l) => n + l.length + 1, 0);
    el.focus();
    el.setSelectionRange(start, start + (all[line - 1]?.length ?? 0));
  };
  return (
    <>
      {(error || where.length > 0) && (
        <ul class="causes" role="alert">
          {error && <li>{error}</li>}
          {where.map((c) => (
            <li>
              {c.line > 0 ? (
                <button type="button" class="plain" onClick={() => jump(c.line)}>
                  line {c.line}
                </button>
              ) : null}{' '}
              <code>{c.field}</code> {c.message}
            </li>
          ))}
        </ul>
      )}
      <div class="yaml">
        <pre ref={numbers} aria-hidden="true">
          {Array.from({ length: count }, (_, i) => (
            <span class={marked.has(i + 1) ? 'marked' : ''}>{i + 1 + '\n'}</span>
          ))}
        </pre>
        <textarea
          ref={area}
          aria-label="YAML"
          class="code"
          spellcheck={false}
          autocomplete="off"
          wrap="off"
          rows={Math.min(40, Math.max(12, count + 1))}
          value={text}
          onInput={(e) => set(e.currentTarget.value)}
          onScroll={(e) => numbers.current && (numbers.current.scrollTop = e.currentTarget.scrollTop)}
          onKeyDown={(e) => {
            // Tab leaves, as everywhere; Control with ] and [ would be the browser's.
            if (e.key !== 'Enter') return;
            const el = e.currentTarget;
            const line = el.value.slice(el.value.lastIndexOf('\n', el.selectionStart - 1) + 1, el.selectionStart);
            const indent = /^ *(?:- )?/.exec(line)![0].replace('-', ' ') + (line.trimEnd().endsWith(':') ? '  ' : '');
            if (!indent) return;
            e.preventDefault();
            el.setRangeText('\n' + indent, el.selectionStart, el.selectionEnd, 'end');
            set(el.value);
          }}
        />
      </div>
    </>
  );
}
