// The palette: kinds, objects, pages and actions by their names. Ctrl+K opens it; with a colon in front it finds
// kinds alone, as :po does in other tools.

import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { pause } from './api';
import { type Kind } from './discovery';
import { keysAreOn, turnKeys } from './keys';
import { pageOf } from './querying';
import { go, linkToKind, linkToNew, linkToObject } from './router';
import { Dialog, useApp, useTask } from './widgets';

export interface Entry {
  what: string; // the sort of thing
  name: string;
  also?: string; // what else it is found by
  hint?: string;
  run: () => void;
}

const mostKinds = 12;
const mostShown = 40;

// fit ranks an entry for words: lower is better, -1 is none.
export function fit(entry: Entry, words: string[]): number {
  const name = entry.name.toLowerCase();
  const text = `${entry.what} ${name} ${entry.also ?? ''}`.toLowerCase();
  if (!words.every((w) => text.includes(w))) return -1;
  const first = words[0] ?? '';
  if (name === first || entry.also?.toLowerCase().split(' ').includes(first)) return 0;
  return name.startsWith(first) ? 1 : name.includes(first) ? 2 : 3;
}

export function Palette({ kinds, actions, begin, close }: { kinds: Kind[]; actions: Entry[]; begin: string; close: () => void }) {
  const { config, namespace, kinds: all } = useApp();
  const [typed, setTyped] = useState(begin);
  const [at, setAt] = useState(0);
  const [objects, setObjects] = useState<Entry[]>([]);
  const id = useId();
  const list = useRef<HTMLUListElement>(null);
  const kindsOnly = typed.startsWith(':');
  const words = typed.replace(/^:/, '').toLowerCase().split(/\s+/).filter(Boolean);
  useTask(
    async (signal) => {
      setObjects([]);
      if (kindsOnly || words.join('').length < 2 || !config.query) return;
      await pause(200, signal);
      // A kind that is named limits the search to its objects.
      const named = kinds.filter((k) => words.length > 1 && [k.kind.toLowerCase(), k.resource, ...k.shortNames].includes(words[0]!));
      const wanted = named.length > 0 ? words.slice(1) : words;
      const asked = { filters: [{ field: 'name', op: 'contains', value: wanted.join(' ') }], labels: '', words: '', sortBy: '', ascending: true };
      const searched = (named.length > 0 ? named : kinds).slice(0, mostKinds);
      const found = await Promise.all(
        searched.map((k) =>
          pageOf(config.query!, k, k.namespaced ? namespace : '', asked, { limit: 6, fields: 'metadata.name' }, signal).then(
            (page) => page.items.map(({ metadata: m }): Entry => ({ what: k.kind, name: m.name, ...(m.namespace ? { hint: m.namespace } : {}), run: () => go(linkToObject(k, m.namespace, m.name)) })),
            () => [],
          ),
        ),
      );
      if (!signal.aborted) setObjects(found.flat());
    },
    [typed, namespace],
  );
  const ofKinds = all.filter((k) => k.verbs.includes('list')).map((k): Entry => ({ what: 'Kind', name: k.kind, also: [k.resource, ...k.shortNames, k.group].join(' '), hint: k.group || 'core', run: () => go(linkToKind(k, namespace)) }));
  const toMake = kinds.filter((k) => k.verbs.includes('create')).map((k): Entry => ({ what: 'New', name: k.kind, also: k.resource, hint: k.group || 'core', run: () => go(linkToNew(k, namespace)) }));
  const fixed = kindsOnly ? ofKinds : [...actions, ...ofKinds, ...toMake];
  const shown = [...fixed.map((e) => ({ e, rank: fit(e, words) })).filter(({ rank }) => rank >= 0).sort((a, b) => a.rank - b.rank), ...objects.map((e) => ({ e, rank: 2 }))]
    .sort((a, b) => a.rank - b.rank)
    .slice(0, mostShown)
    .map(({ e }) => e);
  const chosen = Math.min(at, shown.length - 1);
  useEffect(() => setAt(0), [typed]);
  useEffect(() => list.current?.children[chosen]?.scrollIntoView({ block: 'nearest' }), [chosen]);
  const run = (e: Entry | undefined) => {
    if (!e) return;
    close();
    e.run();
  };
  return (
    <Dialog title="Go to" close={close}>
      <input
        class="palette"
        role="combobox"
        aria-label="Kinds, objects, pages and actions"
        aria-expanded="true"
        aria-controls={id}
        aria-activedescendant={shown.length > 0 ? `${id}-${chosen}` : undefined}
        autocomplete="off"
        autofocus
        placeholder="Kinds, objects, actions; :kind"
        value={typed}
        onInput={(e) => setTyped(e.currentTarget.value)}
        onKeyDown={(e) => {
          if (e.key === 'ArrowDown') setAt(Math.min(shown.length - 1, chosen + 1));
          else if (e.key === 'ArrowUp') setAt(Math.max(0, chosen - 1));
          else if (e.key === 'Enter') run(shown[chosen]);
          else return;
          e.preventDefault();
        }}
      />
      <ul class="found" id={id} role="listbox" aria-label="Found" ref={list}>
        {shown.map((e, i) => (
          <li key={`${e.what}/${e.hint ?? ''}/${e.name}`} id={`${id}-${i}`} role="option" aria-selected={i === chosen} onMouseDown={(m) => (m.preventDefault(), run(e))}>
            <span class="quiet">{e.what}</span> <span>{e.name}</span> <span class="quiet hint">{e.hint}</span>
          </li>
        ))}
      </ul>
      {shown.length === 0 && <p class="quiet">Nothing has such a name.</p>}
    </Dialog>
  );
}

const help: [string, string][] = [
  ['Ctrl+K', 'kinds, objects, pages and actions'],
  [':', 'a kind, by its name or short name'],
  ['/', 'the filter of the table'],
  ['j  k', 'the next row, and the one before'],
  ['Enter', 'opens the object of the row'],
  ['o', 'shows the object beside the table'],
  ['x', 'selects the row'],
  ['[  ]', 'the page before, and the next'],
  ['Esc', 'closes what is open; clears the selection'],
  ['?', 'these keys'],
];

export function Help({ close }: { close: () => void }) {
  const [on, setOn] = useState(keysAreOn());
  return (
    <Dialog title="Keys" close={close}>
      <table class="keys">
        <tbody>
          {help.map(([key, what]) => (
            <tr>
              <th scope="row">
                <kbd>{key}</kbd>
              </th>
              <td>{what}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <label class="check">
        <input type="checkbox" checked={on} onChange={(e) => (turnKeys(e.currentTarget.checked), setOn(e.currentTarget.checked))} /> keys without Ctrl
      </label>
      <div class="buttons">
        <button type="button" onClick={close} autofocus>
          Close
        </button>
      </div>
    </Dialog>
  );
}
