// A document being edited, as YAML or in a form; both show the same one.

import { useEffect, useId, useMemo, useRef, useState } from 'preact/hooks';
import { parseDocument } from 'yaml';
import { type Cause } from './api';
import type { CodeEditor, Mark } from './codemirror';
import { type Doc, filled, rangesOf, settled, typed as withText } from './document';
import { ObjectForm } from './form';
import { schemaOf } from './openapi';
import { pathOfField } from './values';
import { mismatches, type Typed } from './yamlschema';
import { Loading, useLoaded } from './widgets';

export type Mode = 'form' | 'yaml';
export type Change = (update: (doc: Doc) => Doc) => void;

// Reading a text of more characters waits until nothing is typed for a moment.
const large = 60_000;

export function Editor({ kind, doc, change, causes, creating, mode, setMode, submit }: {
  kind: { group: string; version: string; kind: string };
  doc: Doc;
  change: Change;
  causes: Cause[];
  creating: boolean;
  mode: Mode;
  setMode: (mode: Mode) => void;
  submit: () => void;
}) {
  const schema = useLoaded(() => schemaOf(kind), [kind.group, kind.version, kind.kind]);
  useEffect(() => {
    if (!doc.ahead || (doc.ahead === 'object' && mode === 'form')) return undefined;
    const timer = setTimeout(() => change(settled), doc.ahead === 'text' && doc.text.length > large ? 400 : 0);
    return () => clearTimeout(timer);
  }, [doc, mode]);
  const turn = (to: Mode) => {
    change(settled);
    setMode(to);
  };
  const secret = kind.group === '' && kind.kind === 'Secret';
  const [uncovered, uncover] = useState(!secret || creating);
  return (
    <div class="editor">
      <div class="modes" role="group" aria-label="Edit as">
        <button type="button" aria-pressed={mode === 'form'} disabled={mode === 'yaml' && !!doc.error} onClick={() => turn('form')}>
          Form
        </button>
        <button type="button" aria-pressed={mode === 'yaml'} onClick={() => turn('yaml')}>
          YAML
        </button>
      </div>
      {mode === 'yaml' && !uncovered ? (
        <p>
          The text has all values of this Secret, encoded as base64.{' '}
          <button type="button" onClick={() => uncover(true)}>
            Show the text
          </button>
        </p>
      ) : mode === 'yaml' ? (
        <Yaml doc={doc} change={change} causes={causes} typed={schema.value} submit={submit} />
      ) : schema.value ? (
        <ObjectForm schema={schema.value.schema} resolve={schema.value.resolve} creating={creating} secret={secret} value={doc.object} set={(value) => change((d) => filled(d, value as Doc['object']))} causes={causes} />
      ) : schema.error ? (
        <p class="quiet">There is no form: {String((schema.error as Error).message)}</p>
      ) : (
        <Loading what="the schema" />
      )}
    </div>
  );
}

interface Found extends Mark {
  line: number;
  field?: string;
  refused: boolean; // by the server, or as no YAML at all
}

function lineOf(text: string, at: number): number {
  let line = 1;
  for (let i = text.indexOf('\n'); i >= 0 && i < at; i = text.indexOf('\n', i + 1)) line++;
  return line;
}

// find is what is wrong with a text, and where.
function find(doc: Doc, causes: Cause[], typed: Typed | undefined): Found[] {
  const { text } = doc;
  if (doc.error) {
    const errors = parseDocument(text, { prettyErrors: false }).errors;
    if (errors.length === 0) return [{ from: 0, to: 0, line: 0, severity: 'error', message: doc.error, refused: true }];
    return errors.slice(0, 20).map((e) => ({ from: e.pos[0], to: Math.max(e.pos[1], e.pos[0] + 1), line: lineOf(text, e.pos[0]), severity: 'error', message: e.message, refused: true }));
  }
  const wrong = typed ? mismatches(typed, doc.object) : [];
  const refused = causes.map((c) => ({ path: c.field ? pathOfField(c.field) : [], message: c.message ?? '', field: c.field }));
  if (wrong.length + refused.length === 0) return [];
  const ranges = rangesOf(text, [...refused, ...wrong].map((w) => w.path));
  return [...refused, ...wrong].map((w, i): Found => {
    const range = ranges[i];
    const isRefused = i < refused.length;
    const field = 'field' in w ? (w.field as string | undefined) : undefined;
    return { from: range?.from ?? 0, to: range?.to ?? 0, line: range?.line ?? 0, severity: isRefused ? 'error' : 'warning', message: w.message, refused: isRefused, ...(field ? { field } : {}) };
  });
}

function Yaml({ doc, change, causes, typed, submit }: { doc: Doc; change: Change; causes: Cause[]; typed: Typed | undefined; submit: () => void }) {
  const host = useRef<HTMLDivElement>(null);
  const editor = useRef<CodeEditor | undefined>(undefined);
  const [failed, setFailed] = useState<unknown>();
  const [ready, setReady] = useState(false);
  const id = useId();
  const area = useRef<HTMLTextAreaElement>(null);
  const now = useRef({ typed, submit, text: doc.text });
  now.current = { typed, submit, text: doc.text };
  // What the editor has sent comes back as the document's text, perhaps when more is typed already.
  const sent = useRef<string[]>([]);
  const seen = useRef<string | undefined>(undefined);
  useEffect(() => {
    let gone = false;
    import('./codemirror').then(
      ({ codeEditor }) => {
        if (gone || !host.current) return;
        editor.current = codeEditor(host.current, now.current.text, {
          label: 'YAML',
          describedBy: id,
          typed: () => now.current.typed,
          changed: (text) => {
            sent.current.push(text);
            change((d) => withText(d, text));
          },
          submit: () => now.current.submit(),
        });
        setReady(true);
      },
      (error: unknown) => setFailed(error),
    );
    return () => {
      gone = true;
      editor.current?.destroy();
      editor.current = undefined;
    };
  }, []);
  // Another text than what was typed comes from the server, or from the form.
  useEffect(() => {
    if (doc.ahead === 'object' || doc.text === seen.current) return;
    seen.current = doc.text;
    const echo = sent.current.lastIndexOf(doc.text);
    sent.current.splice(0, echo + 1);
    if (echo < 0) editor.current?.setText(doc.text);
  }, [doc.text, doc.ahead]);
  const read = doc.ahead ? undefined : doc;
  const last = useRef<Found[]>([]);
  const found = useMemo(() => (last.current = read ? find(read, causes, typed) : last.current), [read, causes, typed]);
  useEffect(() => {
    if (ready) editor.current?.setMarks(found.map(({ from, to, severity, message }) => ({ from, to, severity, message })));
  }, [found, ready]);
  const jump = (at: number) => {
    editor.current?.jump(at);
    area.current?.focus();
    area.current?.setSelectionRange(at, at);
  };
  const refused = found.filter((f) => f.refused);
  const misfits = found.filter((f) => !f.refused);
  return (
    <>
      {refused.length > 0 && (
        <ul class="causes" role="alert">
          {refused.map((f) => (
            <li>
              {f.line > 0 && (
                <button type="button" class="plain" onClick={() => jump(f.from)}>
                  line {f.line}
                </button>
              )}{' '}
              {f.field && <code>{f.field}</code>} {f.message}
            </li>
          ))}
        </ul>
      )}
      {failed ? (
        <textarea ref={area} aria-label="YAML" class="code" spellcheck={false} autocomplete="off" wrap="off" rows={30} value={doc.text} onInput={(e) => change((d) => withText(d, e.currentTarget.value))} />
      ) : (
        <>
          {!ready && <Loading what="the editor" />}
          <div class="code-editor" ref={host} />
        </>
      )}
      <p class="hint" id={id}>
        {misfits.length > 0 && (
          <>
            <button type="button" class="small" onClick={() => jump(misfits[0]!.from)}>
              {misfits.length === 1 ? 'One place does' : `${misfits.length} places do`} not fit the schema
            </button>{' '}
          </>
        )}
        {failed ? `The editor could not be loaded: ${String(failed)}` : 'Ctrl+Space completes, F8 goes to the next error, Ctrl+F searches. Escape, then Tab leaves the editor.'}
      </p>
    </>
  );
}
