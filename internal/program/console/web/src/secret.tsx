// Values of Secrets, which are hidden until they are asked for, each by itself.

import { useId, useState } from 'preact/hooks';
import { type Cause, type Obj } from './api';
import { causesAt, isObj, own, withAt } from './values';

// textIn is the text that base64 encodes; undefined if that is no text.
export function textIn(encoded: string): string | undefined {
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytesIn(encoded));
    return /[\0-\x08\x0e-\x1f]/.test(text) ? undefined : text;
  } catch {
    return undefined;
  }
}

export function bytesIn(encoded: string): Uint8Array {
  return Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
}

export function encodedOf(text: string): string {
  let bytes = '';
  for (const b of new TextEncoder().encode(text)) bytes += String.fromCharCode(b);
  return btoa(bytes);
}

export function sizeOf(encoded: string): string {
  try {
    const n = bytesIn(encoded).length;
    return n === 1 ? '1 byte' : `${n} bytes`;
  } catch {
    return 'no base64';
  }
}

// covered is a Secret with a word about each value in its place.
export function covered(object: Obj): Obj {
  const cover = (values: unknown, about: (value: string) => string) => (isObj(values) ? Object.fromEntries(Object.entries(values).map(([k, v]) => [k, `(${about(String(v))}, hidden)`])) : values);
  const copy: Obj = { ...object };
  if (copy['data']) copy['data'] = cover(copy['data'], sizeOf) as Obj;
  if (copy['stringData']) copy['stringData'] = cover(copy['stringData'], (v) => `${v.length} characters`) as Obj;
  return copy;
}

// Value shows a value when it is asked for.
export function SecretValue({ name, value }: { name: string; value: string }) {
  const [shown, show] = useState(false);
  const text = shown ? textIn(value) : undefined;
  const [copied, setCopied] = useState(false);
  return (
    <div class="secret">
      <code>{name}</code> <span class="quiet">{sizeOf(value)}</span>{' '}
      <button type="button" class="small" aria-expanded={shown} aria-label={`${shown ? 'Hide' : 'Reveal'} ${name}`} onClick={() => show(!shown)}>
        {shown ? 'Hide' : 'Reveal'}
      </button>{' '}
      {textIn(value) !== undefined && (
        <button
          type="button"
          class="small"
          aria-label={`Copy ${name}`}
          onClick={() => {
            void navigator.clipboard.writeText(textIn(value) ?? '').then(() => setCopied(true));
          }}
        >
          {copied ? 'Copied' : 'Copy'}
        </button>
      )}
      {shown &&
        (text === undefined ? (
          <>
            <p class="quiet">It is no text. As base64:</p>
            <pre class="source" tabIndex={0}>
              {value}
            </pre>
          </>
        ) : (
          <pre class="source" tabIndex={0}>
            {text}
          </pre>
        ))}
    </div>
  );
}

export function SecretValues({ object }: { object: Obj }) {
  const data = own(object, 'data');
  if (!isObj(data) || Object.keys(data).length === 0) return <p class="quiet">It has no values.</p>;
  return (
    <section class="card" aria-label="Values">
      {Object.entries(data).map(([k, v]) => (
        <SecretValue key={k} name={k} value={String(v)} />
      ))}
    </section>
  );
}

// SecretEntries edits the values as texts.
export function SecretEntries({ value, set, causes }: { value: unknown; set: (data: unknown) => void; causes: Cause[] }) {
  const data = isObj(value) ? value : {};
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const [key, setKey] = useState('');
  const put = (k: string, v: string | undefined) => set(withAt(data, [k], v));
  const reveal = (k: string, on: boolean) =>
    setOpen((old) => {
      const next = new Set(old);
      if (on) next.add(k);
      else next.delete(k);
      return next;
    });
  const add = () => {
    if (!key || Object.hasOwn(data, key)) return;
    put(key, '');
    reveal(key, true);
    setKey('');
  };
  const own_ = causesAt(causes, ['data']);
  return (
    <fieldset class={own_.length ? 'wrong' : ''}>
      <legend>data</legend>
      <p class="hint">Values are edited as text, and stored as base64.</p>
      {own_.map((c) => (
        <p class="cause" role="alert">
          {c.message}
        </p>
      ))}
      {Object.entries(data).map(([k, v]) => (
        <SecretEntry key={k} name={k} value={String(v)} open={open.has(k)} reveal={(on) => reveal(k, on)} put={(t) => put(k, t)} causes={causesAt(causes, ['data', k])} />
      ))}
      <div class="adding">
        <input aria-label="New key of data" placeholder="key" value={key} onInput={(e) => setKey(e.currentTarget.value)} onKeyDown={(e) => e.key === 'Enter' && (e.preventDefault(), add())} />
        <button type="button" class="small" disabled={!key || Object.hasOwn(data, key)} onClick={add}>
          Add
        </button>
      </div>
    </fieldset>
  );
}

function SecretEntry({ name, value, open, reveal, put, causes }: { name: string; value: string; open: boolean; reveal: (on: boolean) => void; put: (v: string | undefined) => void; causes: Cause[] }) {
  const id = useId();
  const text = textIn(value);
  return (
    <div class={`labelled ${causes.length ? 'wrong' : ''}`}>
      {open && text !== undefined ? <label for={id}>{name}</label> : <code>{name}</code>} <span class="quiet">{sizeOf(value)}{text === undefined ? ', binary' : ''}</span>{' '}
      {text === undefined ? (
        <button type="button" class="small" aria-label={`Replace ${name} by a text`} onClick={() => (put(''), reveal(true))}>
          Replace by a text
        </button>
      ) : (
        <button type="button" class="small" aria-expanded={open} aria-label={`${open ? 'Hide' : 'Reveal'} ${name}`} onClick={() => reveal(!open)}>
          {open ? 'Hide' : 'Reveal'}
        </button>
      )}{' '}
      <button type="button" class="small plain" aria-label={`Remove ${name} of data`} onClick={() => put(undefined)}>
        ×
      </button>
      {open && text !== undefined && <textarea id={id} class="code" spellcheck={false} autocomplete="off" rows={Math.min(10, text.split('\n').length + 1)} value={text} onInput={(e) => put(encodedOf(e.currentTarget.value))} />}
      {causes.map((c) => (
        <p class="cause" role="alert">
          {c.message}
        </p>
      ))}
    </div>
  );
}
