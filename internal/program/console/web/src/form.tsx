// A form made of a schema. What it has no way of editing is edited as YAML in its place.

import { useEffect, useId, useState } from 'preact/hooks';
import { parse, stringify } from 'yaml';
import { type Cause } from './api';
import { type Resolve, type Schema, shapeOf } from './openapi';
import { at, causesAt, isObj, type Path, pathOfField, same, withAt } from './values';

export interface FormState {
  value: unknown;
  set: (value: unknown) => void;
  resolve: Resolve;
  causes: Cause[];
  fixed?: Path[]; // what is shown and not edited
}

// The server sees to these.
const hidden = new Set(['apiVersion', 'kind', 'status']);
// What these mean is known.
const metadata = ['name', 'namespace', 'labels', 'annotations'];

export function ObjectForm({ schema, creating, ...state }: FormState & { schema: Schema; creating: boolean }) {
  const s = state.resolve(schema);
  const names = Object.keys(s.properties ?? {}).filter((n) => !hidden.has(n) && n !== 'metadata');
  const fixed: Path[] = creating ? [] : [['metadata', 'name'], ['metadata', 'namespace']];
  const orphans = state.causes.filter((c) => !c.field || at(state.value, pathOfField(c.field)) === undefined);
  return (
    <div class="form">
      {orphans.length > 0 && (
        <ul class="causes" role="alert">
          {orphans.map((c) => (
            <li>
              <code>{c.field}</code> {c.message}
            </li>
          ))}
        </ul>
      )}
      {s.properties?.['metadata'] && (
        <fieldset>
          <legend>metadata</legend>
          {metadata
            .filter((n) => n !== 'namespace' || at(state.value, ['metadata', 'namespace']) !== undefined)
            .map((n) => (
              <Entry key={n} {...state} fixed={fixed} name={n} path={['metadata', n]} schema={n === 'name' || n === 'namespace' ? { type: 'string' } : { type: 'object', additionalProperties: { type: 'string' } }} required={n === 'name'} depth={1} />
            ))}
        </fieldset>
      )}
      {names.map((n) => (
        <Entry key={n} {...state} name={n} path={[n]} schema={s.properties![n]!} required={s.required?.includes(n) ?? false} depth={0} />
      ))}
    </div>
  );
}

// PlainForm is that of a body which is no object with metadata.
export function PlainForm({ schema, ...state }: FormState & { schema: Schema }) {
  const s = state.resolve(schema);
  const names = Object.keys(s.properties ?? {}).filter((n) => !hidden.has(n) && n !== 'metadata');
  return (
    <div class="form">
      {names.map((n) => (
        <Entry key={n} {...state} name={n} path={[n]} schema={s.properties![n]!} required={s.required?.includes(n) ?? false} depth={0} />
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
      <Scalar id={id} describedBy={describedBy} wrong={own.length > 0} schema={schema} value={value} required={required || !!props.item} put={put} fixed={props.fixed?.some((f) => same(f, path)) ?? false} />
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
      {Object.entries(schema.properties ?? {}).map(([n, s]) => (
        <Entry key={n} {...props} item={false} name={n} path={[...path, n]} schema={s} required={schema.required?.includes(n) ?? false} depth={depth + 1} />
      ))}
    </>
  );
}

function MapEntries(props: EntryProps) {
  const { schema, path, value: root, set, resolve, name } = props;
  const map = at(root, path);
  const [key, setKey] = useState('');
  const of = schema.additionalProperties as Schema;
  // What kubectl keeps of its applies is nothing to edit.
  const entries = isObj(map) ? Object.keys(map).filter((k) => k !== 'kubectl.kubernetes.io/last-applied-configuration') : [];
  const add = () => {
    if (!key || entries.includes(key)) return;
    set(withAt(root, [...path, key], empty(of, resolve)));
    setKey('');
  };
  return (
    <>
      {entries.map((k) => (
        <div class="item" key={k}>
          <Entry {...props} name={k} path={[...path, k]} schema={of} required={false} item={true} depth={props.depth + 1} />
          <button type="button" class="small plain" aria-label={`Remove ${k} of ${name}`} onClick={() => set(withAt(root, [...path, k], undefined))}>
            ×
          </button>
        </div>
      ))}
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
      {items.map((_, i) => (
        <div class="item" key={i}>
          <Entry {...props} name={`${name} ${i + 1}`} path={[...path, i]} schema={schema.items!} required={false} item={true} depth={props.depth + 1} />
          <button type="button" class="small plain" aria-label={`Remove ${name} ${i + 1}`} onClick={() => set(withAt(root, [...path, i], undefined))}>
            ×
          </button>
        </div>
      ))}
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
  fixed: boolean;
  put: (v: unknown) => void;
}

function Scalar({ id, describedBy, wrong, schema, value, required, fixed, put }: ScalarProps) {
  const shared = { id, 'aria-describedby': describedBy, 'aria-invalid': wrong, disabled: fixed };
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
      if (text.includes('\n') || text.length > 120) return <textarea {...shared} rows={Math.min(12, text.split('\n').length + 1)} value={text} onInput={(e) => change(e.currentTarget.value)} />;
      return <input {...shared} value={text} placeholder={byDefault || (schema.format === 'date-time' ? '2026-01-31T00:00:00Z' : '')} onInput={(e) => change(e.currentTarget.value)} />;
    }
    default:
      return <AsYaml id={id} value={value} put={put} />;
  }
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
