// What differs between two objects, to be read before it is saved, and in the history.

import { useState } from 'preact/hooks';
import { lines, type Clash, written } from './diff';
import { textOf } from './document';
import { sizeOf, textIn } from './secret';

export interface Difference {
  path: string;
  from?: unknown;
  to?: unknown;
  note?: string;
}

const most = 200;
const longest = 20_000;

function text(value: unknown): string {
  const t = typeof value === 'string' ? value : textOf(value).replace(/\n$/, '');
  return t.length > longest ? `${t.slice(0, longest)}\n… ${t.length - longest} more characters` : t;
}

// isSecret says whether a path is a value of a Secret, or all of them.
function isSecret(path: string): boolean {
  return /^\.?(data|stringData)($|[.[])/.test(path);
}

export function Differences({ all, secret }: { all: Difference[]; secret: boolean }) {
  const [whole, showAll] = useState(false);
  const shown = whole ? all : all.slice(0, most);
  return (
    <>
      <ul class="differences">
        {shown.map((d) => (
          <li key={d.path}>
            <code class="path">{d.path || '(the whole object)'}</code> {d.note && <span class="quiet">{d.note}</span>}
            {secret && isSecret(d.path) ? <Hidden {...d} /> : <FromTo {...d} />}
          </li>
        ))}
      </ul>
      {shown.length < all.length && (
        <button type="button" onClick={() => showAll(true)}>
          Show {all.length - shown.length} more
        </button>
      )}
    </>
  );
}

function Hidden({ path, from, to }: Difference) {
  const [shown, show] = useState(false);
  const size = (v: unknown) => (v === undefined ? 'nothing' : typeof v === 'string' ? sizeOf(v) : 'values');
  const plain = (v: unknown) => (typeof v === 'string' && !path.includes('stringData') ? (textIn(v) ?? v) : v);
  return (
    <>
      <p>
        {size(from)} → {size(to)}{' '}
        <button type="button" class="small" aria-expanded={shown} aria-label={`${shown ? 'Hide' : 'Reveal'} ${path}`} onClick={() => show(!shown)}>
          {shown ? 'Hide' : 'Reveal'}
        </button>
      </p>
      {shown && <FromTo path={path} from={plain(from)} to={plain(to)} />}
    </>
  );
}

function FromTo({ from, to }: Difference) {
  const [a, b] = [from === undefined ? undefined : text(from), to === undefined ? undefined : text(to)];
  const short = (t: string | undefined) => t === undefined || (t.length < 80 && !t.includes('\n'));
  if (short(a) && short(b))
    return (
      <p class="from-to">
        {a !== undefined && <del>{a === '' ? '""' : a}</del>}
        {a !== undefined && b !== undefined && <span aria-hidden="true"> → </span>}
        {b !== undefined && <ins>{b === '' ? '""' : b}</ins>}
        {b === undefined && <span class="quiet"> is removed</span>}
        {a === undefined && <span class="quiet"> is added</span>}
      </p>
    );
  const compared = a === undefined ? b!.split('\n').map((t) => ({ sign: '+' as const, text: t })) : b === undefined ? a.split('\n').map((t) => ({ sign: '-' as const, text: t })) : lines(a, b);
  return (
    <pre class="source lines" tabIndex={0}>
      {compared.map(({ sign, text: t }) => (sign === '+' ? <ins>{`+ ${t}\n`}</ins> : sign === '-' ? <del>{`- ${t}\n`}</del> : `  ${t}\n`))}
    </pre>
  );
}

// Clashes shows fields that two edits have changed, to choose one of the values for each.
export function Clashes({ all, by, chosen, choose, secret }: { all: Clash[]; by: (clash: Clash) => string[]; chosen: ReadonlyMap<string, 'theirs' | 'mine'>; choose: (id: string, side: 'theirs' | 'mine') => void; secret: boolean }) {
  return (
    <>
      {all.map((c) => (
        <fieldset key={c.id} class="clash">
          <legend>{written(c.path) || 'the object'}</legend>
          <dl>
            <dt>When you began</dt>
            <dd>
              <Side value={c.base} hidden={secret && isSecret(c.id)} />
            </dd>
          </dl>
          {(['theirs', 'mine'] as const).map((side) => (
            <label key={side} class="check">
              <input type="radio" name={'clash-' + c.id} checked={chosen.get(c.id) === side} onChange={() => choose(c.id, side)} />
              <span>
                <strong>{side === 'theirs' ? 'Keep what is stored now' : 'Keep mine'}</strong>
                {side === 'theirs' && by(c).length > 0 && <span class="quiet"> set by {by(c).join(', ')}</span>}: <Side value={c[side]} hidden={secret && isSecret(c.id)} />
              </span>
            </label>
          ))}
        </fieldset>
      ))}
    </>
  );
}

function Side({ value, hidden }: { value: unknown; hidden: boolean }) {
  if (value === undefined) return <span class="quiet">not there</span>;
  if (hidden) return <span class="quiet">{typeof value === 'string' ? sizeOf(value) : 'values'}, hidden</span>;
  const t = text(value);
  return t.includes('\n') || t.length > 80 ? <pre class="source">{t}</pre> : <code>{t === '' ? '""' : t}</code>;
}
