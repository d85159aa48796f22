// A form made of a schema. What it has no way of editing is edited as YAML in its place.

import { type ComponentChildren } from 'preact';
import { useEffect, useId, useState } from 'preact/hooks';
import { parse, stringify } from 'yaml';
import { type Cause } from './api';
import { type Resolve, type Schema, shapeOf } from './openapi';
import { SecretEntries } from './secret';
import { at, causesAt, isObj, lastApplied, own, type Path, pathOfField, same, withAt } from './values';

export interface FormState {
  value: unknown;
  set: (value: unknown) => void;
  resolve: Resolve;
  causes: Cause[];
}

// The server sees to these.
const hidden = new Set(['apiVersion', 'kind', 'status']);
// What these mean is known.
const metadata = ['name', 'namespace', 'labels', 'annotations'];

// requiredFirst are the properties of a schema, without those that are not edited.
function requiredFirst(s: Schema, top: boolean): [name: string, schema: Schema, required: boolean][] {
  const all = Object.entries(s.properties ?? {})
    .filter(([n]) => !top || (!hidden.has(n) && n !== 'metadata'))
    .map(([n, p]): [string, Schema, boolean] => [n, p, s.required?.includes(n) ?? false]);
  return [...all.filter(([, , r]) => r), ...all.filter(([, , r]) => !r)];
}

// shows says whether a form has a place for a field, where what is wrong with it is shown.
function shows(schema: Schema, resolve: Resolve, value: unknown, path: Path): boolean {
  let s: Schema | undefined = resolve(schema);
  let v: unknown = value;
  for (const [i, step] of path.entries()) {
    if (!s || (i > 0 && (v === undefined || v === null))) return false;
    if (i === 0 && typeof step === 'string' && hidden.has(step)) return false;
    const inner: Schema | undefined = typeof step === 'number' ? s.items : ((own(s.properties, step) as Schema | undefined) ?? (typeof s.additionalProperties === 'object' ? s.additionalProperties : undefined));
    if (!inner) return false;
    // Only what is there has an entry in a list or map.
    if (!own(s.properties, step) && own(v, step) === undefined) return false;
    s = resolve(inner);
    v = own(v, step);
  }
  return path.length > 0;
}

export function ObjectForm({ schema, creating, secret, ...state }: FormState & { schema: Schema; creating: boolean; secret?: boolean }) {
  const s = state.resolve(schema);
  const names = requiredFirst(s, true).filter(([n]) => !secret || n !== 'stringData');
  const fixed = creating ? [] : ['name', 'namespace'];
  const orphans = state.causes.filter((c) => {
    const path = c.field ? pathOfField(c.field) : [];
    return path[0] === 'metadata' ? !metadata.includes(String(path[1])) || fixed.includes(String(path[1])) || (path.length > 2 && at(state.value, path) === undefined) : !shows(s, state.resolve, state.value, path);
  });
  return (
    <div class="form">
      {orphans.length > 0 && (
        <ul class="causes" role="alert">
          {orphans.map((c) => (
            <li>
              {c.field && <code>{c.field}</code>} {c.message}
            </li>
          ))}
        </ul>
      )}
      {s.properties?.['metadata'] && (
        <fieldset>
          <legend>metadata</legend>
          {!creating && (
            <dl class="facts">
              {fixed.map((n) => {
                const text = at(state.value, ['metadata', n]);
                return typeof text === 'string' && (
                  <div key={n}>
                    <dt>{n}</dt>
                    <dd>
                      <code>{text}</code>
                    </dd>
                  </div>
                );
              })}
            </dl>
          )}
          {metadata
            .filter((n) => !fixed.includes(n) && (n !== 'namespace' || at(state.value, ['metadata', 'namespace']) !== undefined))
            .map((n) => (
              <Entry key={n} {...state} name={n} path={['metadata', n]} schema={n === 'name' || n === 'namespace' ? { type: 'string' } : { type: 'object', additionalProperties: { type: 'string' } }} required={n === 'name'} depth={1} />
            ))}
        </fieldset>
      )}
      {names.map(([n, p, required]) =>
        secret && n === 'data' ? (
          <SecretEntries key={n} value={at(state.value, ['data'])} set={(data) => state.set(withAt(state.value, ['data'], data))} causes={state.causes} />
        ) : (
          <Entry key={n} {...state} name={n} path={[n]} schema={p} required={required} depth={0} />
        ),
      )}
    </div>
  );
}

// PlainForm is that of a body which is no object with metadata.
export function PlainForm({ schema, ...state }: FormState & { schema: Schema }) {
  const s = state.resolve(schema);
  const names = requiredFirst(s, true);
  return (
    <div class="form">
      {names.map(([n, p, required]) => (
        <Entry key={n} {...state} name={n} path={[n]} schema={p} required={required} depth={0} />
      ))}
      {names.length === 0 && <p class="quiet">It takes no values.</p>}
    </div>
  );
}

interface EntryProps extends FormState {
  name: string;
  path: Path;
  schema: Schema;
  required: boolean;
  item?: boolean; // of a list or map, from which it is removed beside it
  depth: number;
}

// empty is what begins a value of a schema.
function empty(schema: Schema, resolve: Resolve): unknown {
  const s = resolve(schema);
  if (s.default !== undefined && !(isObj(s.default) && Object.keys(s.default).length === 0)) return s.default;
  switch (shapeOf(s)) {
    case 'object':
    case 'map':
      return {};
    case 'list':
      return [];
    case 'boolean':
      return false;
    case 'enum':
      return s.enum![0];
    case 'number':
    case 'integer':
      return s.minimum ?? 0;
    default:
      return '';
  }
}

function Entry(props: EntryProps) {
  const { name, path, required, resolve, value: root, set, causes } = props;
  const schema = resolve(props.schema);
  const shape = shapeOf(schema);
  const value = at(root, path);
  const id = useId();
  const put = (v: unknown) => set(withAt(root, path, v));
  const own = causesAt(causes, path);
  const nested = shape === 'object' || shape === 'map' || shape === 'list';
  const describedBy = `${id}-d`;
  const about = (
    <div id={describedBy}>
      {schema.description && <p class="hint">{firstSentences(schema.description)}</p>}
      {own.map((c) => (
        <p class="cause" role="alert">
          {c.message}
        </p>
      ))}
    </div>
  );
  const label = (
    <>
      {name}
      {required && (
        <span class="required" title="required">
          {' '}
          *
        </span>
      )}
    </>
  );
  if (nested)
    return (
      <fieldset class={own.length ? 'wrong' : ''} aria-describedby={describedBy}>
        <legend>{label}</legend>
        {about}
        {value === undefined || value === null ? (
          <button type="button" class="small" onClick={() => put(empty(schema, resolve))}>
            Set {name}
          </button>
        ) : (
          <>
            {shape === 'object' && <Properties {...props} schema={schema} />}
            {shape === 'map' && <MapEntries {...props} schema={schema} />}
            {shape === 'list' && <ListEntries {...props} schema={schema} />}
            {!required && !props.item && (
              <button type="button" class="small plain" onClick={() => put(undefined)}>
                Remove {name}
              </button>
            )}
          </>
        )}
      </fieldset>
    );
  return (
    <div class={`labelled ${own.length ? 'wrong' : ''}`}>
      <label for={id}>{label}</label>
      <Scalar id={id} describedBy={describedBy} wrong={own.length > 0} schema={schema} value={value} required={required || !!props.item} put={put} />
      {about}
    </div>
  );
}

function firstSentences(text: string): string {
  return text.length > 400 ? text.slice(0, text.lastIndexOf(' ', 400)) + ' …' : text;
}

function Properties(props: EntryProps) {
  const { schema, path, depth } = props;
  if (depth > 12) return <AsYaml id="" value={at(props.value, path)} put={(v) => props.set(withAt(props.value, path, v))} />;
  return (
    <>
      {requiredFirst(schema, false).map(([n, s, required]) => (
        <Entry key={n} {...props} item={false} name={n} path={[...path, n]} schema={s} required={required} depth={depth + 1} />
      ))}
    </>
  );
}

const atOnce = 50;

// Part shows so many entries at once as a page can bear, and turns to one that is wrong, or that was added.
function Part<T>({ all, of, wrong, children }: { all: T[]; of: string; wrong: number; children: (one: T) => ComponentChildren }) {
  const [from, setFrom] = useState(0);
  const [count, setCount] = useState(all.length);
  const pageOf = (i: number) => Math.floor(i / atOnce) * atOnce;
  useEffect(() => {
    if (all.length > count) setFrom(pageOf(all.length - 1));
    setCount(all.length);
  }, [all.length]);
  useEffect(() => {
    if (wrong >= 0) setFrom(pageOf(wrong));
  }, [wrong]);
  const first = Math.min(from, pageOf(Math.max(0, all.length - 1)));
  return (
    <>
      {all.length > atOnce && (
        <p class="adding">
          <button type="button" class="small" disabled={first === 0} onClick={() => setFrom(first - atOnce)}>
            Previous
          </button>
          <span role="status">
            {first + 1} to {Math.min(first + atOnce, all.length)} of {all.length} of {of}
          </span>
          <button type="button" class="small" disabled={first + atOnce >= all.length} onClick={() => setFrom(first + atOnce)}>
            Next
          </button>
        </p>
      )}
      {all.slice(first, first + atOnce).map(children)}
    </>
  );
}

function MapEntries(props: EntryProps) {
  const { schema, path, value: root, set, resolve, name } = props;
  const map = at(root, path);
  const [key, setKey] = useState('');
  const of = schema.additionalProperties as Schema;
  const entries = isObj(map) ? Object.keys(map).filter((k) => k !== lastApplied) : [];
  const add = () => {
    if (!key || entries.includes(key)) return;
    set(withAt(root, [...path, key], empty(of, resolve)));
    setKey('');
  };
  return (
    <>
      <Part all={entries} of={name} wrong={entries.findIndex((k) => props.causes.some((c) => c.field && same(pathOfField(c.field).slice(0, path.length + 1), [...path, k])))}>
        {(k) => (
        <div class="item" key={k}>
          <Entry {...props} name={k} path={[...path, k]} schema={of} required={false} item={true} depth={props.depth + 1} />
          <button type="button" class="small plain" aria-label={`Remove ${k} of ${name}`} onClick={() => set(withAt(root, [...path, k], undefined))}>
            ×
          </button>
        </div>
        )}
      </Part>
      <div class="adding">
        <input aria-label={`New key of ${name}`} placeholder="key" value={key} onInput={(e) => setKey(e.currentTarget.value)} onKeyDown={(e) => e.key === 'Enter' && (e.preventDefault(), add())} />
        <button type="button" class="small" disabled={!key || entries.includes(key)} onClick={add}>
          Add
        </button>
      </div>
    </>
  );
}

function ListEntries(props: EntryProps) {
  const { schema, path, value: root, set, resolve, name } = props;
  const list = at(root, path);
  const items = Array.isArray(list) ? list : [];
  return (
    <>
      <Part all={items.map((_, i) => i)} of={name} wrong={items.findIndex((_, i) => props.causes.some((c) => c.field && same(pathOfField(c.field).slice(0, path.length + 1), [...path, i])))}>
        {(i) => (
        <div class="item" key={i}>
          <Entry {...props} name={`${name} ${i + 1}`} path={[...path, i]} schema={schema.items!} required={false} item={true} depth={props.depth + 1} />
          <button type="button" class="small plain" aria-label={`Remove ${name} ${i + 1}`} onClick={() => set(withAt(root, [...path, i], undefined))}>
            ×
          </button>
        </div>
        )}
      </Part>
      <button type="button" class="small" onClick={() => set(withAt(root, [...path, items.length], empty(schema.items!, resolve)))}>
        Add to {name}
      </button>
    </>
  );
}

interface ScalarProps {
  id: string;
  describedBy: string;
  wrong: boolean;
  schema: Schema;
  value: unknown;
  required: boolean;
  put: (v: unknown) => void;
}

function Scalar({ id, describedBy, wrong, schema, value, required, put }: ScalarProps) {
  const shared = { id, 'aria-describedby': describedBy, 'aria-invalid': wrong };
  const byDefault = schema.default === undefined || isObj(schema.default) ? '' : String(schema.default);
  switch (shapeOf(schema)) {
    case 'enum':
      return (
        <select {...shared} value={value === undefined || value === null ? '' : String(value)} onChange={(e) => put(schema.enum!.find((v) => String(v) === e.currentTarget.value && e.currentTarget.value !== ''))}>
          <option value="">{byDefault ? `${byDefault} (default)` : ''}</option>
          {schema.enum!.filter((v) => v !== '').map((v) => (
            <option value={String(v)}>{String(v)}</option>
          ))}
        </select>
      );
    case 'boolean':
      return required || schema.default === undefined ? (
        <select {...shared} value={value === undefined || value === null ? '' : String(value)} onChange={(e) => put(e.currentTarget.value === '' ? undefined : e.currentTarget.value === 'true')}>
          <option value="" />
          <option value="true">true</option>
          <option value="false">false</option>
        </select>
      ) : (
        <select {...shared} value={value === undefined || value === null ? '' : String(value)} onChange={(e) => put(e.currentTarget.value === '' ? undefined : e.currentTarget.value === 'true')}>
          <option value="">{byDefault} (default)</option>
          <option value="true">true</option>
          <option value="false">false</option>
        </select>
      );
    case 'number':
    case 'integer':
      return <NumberInput shared={shared} schema={schema} value={value} byDefault={byDefault} put={put} />;
    case 'intOrString':
      return (
        <input
          {...shared}
          value={value === undefined || value === null ? '' : String(value)}
          placeholder={byDefault || 'a number or a text'}
          onInput={(e) => {
            const t = e.currentTarget.value;
            put(t === '' ? undefined : /^-?\d{1,15}$/.test(t) ? Number(t) : t);
          }}
        />
      );
    case 'string': {
      const text = typeof value === 'string' ? value : value === undefined || value === null ? '' : String(value);
      const change = (t: string) => put(t === '' && !required ? undefined : t);
      if (text.length > tooLong) return <LongText {...shared} text={text} change={change} />;
      if (text.includes('\n') || text.length > 120) return <textarea {...shared} rows={Math.min(12, text.split('\n').length + 1)} value={text} onInput={(e) => change(e.currentTarget.value)} />;
      return <input {...shared} value={text} placeholder={byDefault || (schema.format === 'date-time' ? '2026-01-31T00:00:00Z' : '')} onInput={(e) => change(e.currentTarget.value)} />;
    }
    default:
      return <AsYaml id={id} value={value} put={put} />;
  }
}

// Of this many characters on a text is slow to lay out.
const tooLong = 50_000;

function LongText({ text, change, ...shared }: { id: string; text: string; change: (t: string) => void }) {
  const [open, setOpen] = useState(false);
  if (open) return <textarea {...shared} rows={12} value={text} onInput={(e) => change(e.currentTarget.value)} />;
  return (
    <div>
      <pre class="source">{text.slice(0, 300)} …</pre>
      <button type="button" class="small" id={shared.id} onClick={() => setOpen(true)}>
        Edit all {text.length} characters here
      </button>
    </div>
  );
}

// NumberInput lets what is no number be typed, and leaves it to the server to refuse it.
function NumberInput({ shared, schema, value, byDefault, put }: { shared: object; schema: Schema; value: unknown; byDefault: string; put: (v: unknown) => void }) {
  const [text, setText] = useState(value === undefined || value === null ? '' : String(value));
  useEffect(() => {
    if (text === '' ? value !== undefined && value !== null : value !== Number(text) && value !== text) setText(value === undefined || value === null ? '' : String(value));
  }, [value]);
  return (
    <input
      {...shared}
      inputMode={schema.type === 'integer' ? 'numeric' : 'decimal'}
      value={text}
      placeholder={byDefault || [schema.minimum !== undefined ? `from ${schema.minimum}` : '', schema.maximum !== undefined ? `to ${schema.maximum}` : ''].filter(Boolean).join(' ')}
      onInput={(e) => {
        const t = e.currentTarget.value.trim();
        setText(t);
        put(t === '' ? undefined : Number.isFinite(Number(t)) ? Number(t) : t);
      }}
    />
  );
}

function AsYaml({ id, value, put }: { id: string; value: unknown; put: (v: unknown) => void }) {
  const [text, setText] = useState(value === undefined ? '' : stringify(value));
  const [error, setError] = useState('');
  return (
    <>
      <textarea
        id={id || undefined}
        class="code"
        spellcheck={false}
        rows={Math.min(12, text.split('\n').length + 1)}
        value={text}
        onInput={(e) => {
          const t = e.currentTarget.value;
          setText(t);
          try {
            put(t.trim() === '' ? undefined : parse(t));
            setError('');
          } catch (problem) {
            setError(problem instanceof Error ? problem.message : String(problem));
          }
        }}
      />
      {error && <p class="cause">{error}</p>}
    </>
  );
}
